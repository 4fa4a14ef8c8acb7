package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"writegate/http/controlplane"
	"writegate/http/httpd"
)

func (a *app) controlPlaneCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "control-plane", Short: "Run the operators' dashboard", Args: cobra.NoArgs,
		Long: `Run the operators' dashboard in front of a gate that runs elsewhere.

It needs GATE_BACKEND_URL (the gate's address), GATE_OPERATOR_TOKEN, CONTROL_PLANE_ADMIN_USER and
CONTROL_PLANE_ADMIN_PASSWORD_HASH. Browsers talk to this process alone; they never see the gate's
address or its operator token. CONTROL_PLANE_MODE=mock shows invented data without a gate.`,
		RunE: func(c *cobra.Command, _ []string) error { return serviceEnd(a.controlPlane(c.Context())) },
	}
	cmd.AddCommand(a.hashPasswordCommand(), a.controlPlaneConfigCommand())
	return cmd
}

// controlPlane serves until ctx ends.
func (a *app) controlPlane(ctx context.Context) error {
	a.queueLines()
	s, err := loadControlPlane(a.environ)
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	options, err := s.options(time.Now)
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	options.Logger, options.Now = slog.New(httpd.BoundLines(a.lineHandler(s.LogFormat))), a.sessionClock
	keeper := newTLSKeeper(options.Logger, cmp.Or(a.look, lookEvery))
	defer keeper.close()
	certificate, err := keeper.keepPlane(s, options.Backend)
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	plane, err := controlplane.New(ctx, options)
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	server, err := httpd.Listen(httpd.ServerOptions{Addr: s.ListenAddr, Handler: plane, Logger: options.Logger, TLS: certificate, DrainTimeout: drainTime, Proxies: options.Proxies})
	if err != nil {
		return listenError("CONTROL_PLANE_LISTEN_ADDR", s.ListenAddr, err)
	}
	if addr, ok := server.Addr().(*net.TCPAddr); ok && !s.secure() && !addr.IP.IsLoopback() {
		options.Logger.Warn("the dashboard is cleartext on an address that others reach: passwords can be read on the way; set CONTROL_PLANE_TLS_CERT_PATH and CONTROL_PLANE_TLS_KEY_PATH", "source", "control-plane")
	}
	options.Logger.Info("the control plane is listening", "source", "control-plane", "address", server.Addr().String(), "mode", s.Mode, "tls", certificate != nil)
	working, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer stop() // also where the listener fails
	work.Go(func() { plane.Run(working) })
	work.Go(func() { keeper.run(working) })
	if a.ready != nil {
		a.ready(server.Addr().String())
	}
	_, err = server.Serve(ctx)
	return err
}

func (a *app) controlPlaneConfigCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "config", Short: "Print every setting of the control plane, its value and where it came from", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := loadControlPlane(a.environ)
			if err != nil {
				return exitWith(exitConfigured, err)
			}
			return printSettings(c.OutOrStdout(), describe(s, a.environ), asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) hashPasswordCommand() *cobra.Command {
	return &cobra.Command{
		Use: "hash-password", Short: "Read a password and print its hash for CONTROL_PLANE_ADMIN_PASSWORD_HASH", Args: cobra.NoArgs,
		Long: `Read a password, from the terminal without showing it or from standard input, and print its argon2id
hash. Put the line into CONTROL_PLANE_ADMIN_PASSWORD_HASH; in a shell, in single quotes.`,
		RunE: func(c *cobra.Command, _ []string) error {
			password, err := a.readPassword()
			if err != nil {
				return exitWith(exitFailed, err)
			}
			hash, err := controlplane.HashPassword(password)
			if err != nil {
				return exitWith(exitUsage, err)
			}
			_, err = fmt.Fprintln(a.out, hash)
			return err
		},
	}
}

func (a *app) readPassword() (string, error) { return a.readSecret("Password: ") }

// readSecret reads a line, from a terminal without showing it.
func (a *app) readSecret(prompt string) (string, error) {
	if f, ok := a.in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		fmt.Fprint(a.err, prompt)
		typed, err := term.ReadPassword(int(f.Fd()))
		fmt.Fprintln(a.err)
		return string(typed), err
	}
	line, err := bufio.NewReader(io.LimitReader(a.in, 4096)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return strings.TrimRight(line, "\r\n"), nil
}
