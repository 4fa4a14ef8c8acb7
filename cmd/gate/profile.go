//go:build profile

package main

import (
	_ "expvar" // memory, at /debug/vars
	"fmt"
	"net"
	"net/http"
	_ "net/http/pprof" // processor time, at /debug/pprof
	"os"
)

// A gate that is built with the tag profile, which `make profile` alone does, serves
// its profiles on a loopback port of its own. No build that ships has this file.
func init() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(os.Stderr, "{\"msg\":\"profiles are served\",\"address\":%q}\n", listener.Addr())
	go func() { panic(http.Serve(listener, nil)) }()
}
