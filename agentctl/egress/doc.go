// Package egress is the one way from the gate to addresses that a client named.
//
// Somebody who registers a tool writes a URL, and the gate goes there. Without a
// guard that is a way into the network behind the gate: its loopback, the
// metadata service of its cloud, the databases beside it. So every visit goes
// through a Guard, and what the guard holds does not depend on how the URL was
// written:
//
//   - A URL is https on port 443. Other ports, and plain http, are for what the
//     operator opened by name (Rules). One spelling of a host is taken: ASCII,
//     no user info, no zone, no numbers in disguise.
//   - An address is judged when the connection is made to it, after the name was
//     resolved, at each connection. There is no look-up whose answer could
//     change before it is used.
//   - Loopback, private, link-local, shared, multicast, mapped and translated
//     addresses are refused, and so are the addresses of this machine itself and
//     of the metadata services that live outside those ranges.
//   - TLS is always verified. Proxies of the environment are not used. At most
//     three redirects are followed, none to http.
//   - A credential goes to the first host alone, and not to it again once a
//     redirect has led away from it.
//   - A body ends at one mebibyte, nothing is decompressed, and one deadline
//     covers look-up, connection, handshake, headers and bodies.
//
// A Visit is one use of the guard: its connections are its own and end with it.
// What a visit refuses is a Refusal with a code of spec/v1.md part 12, and holds
// nothing of what a server sent.
package egress
