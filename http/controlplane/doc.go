// Package controlplane is the operators' dashboard: the room where a person
// decides at three in the morning whether an agent's UPDATE may run (contract:
// spec/gate.md part 1; settings and login: spec/decisions.md part 9).
//
// # The story of a page
//
// It runs in a process of its own and knows nothing of the gate but its HTTP
// API. A browser talks to this process alone. Login gives it a session, kept in
// memory here and named by a cookie that no script can read. A page is made on
// the server: it asks the gate for what it shows (source), turns the answers
// into words, and renders a template. It works without scripts; the few small
// modules under assets add what changes the world or moves by itself: approving,
// activating, live updates, countdowns. They call /api/gate/*, which hands a
// closed list of endpoints on to the gate (proxy), adding the operator token
// where one is needed. Neither that token nor the gate's address is in any
// answer, page, header, error or log line.
//
// Every mutation needs the session, its CSRF token (guard) and the page's own
// Origin (httpd). The content security policy has no exception: no inline script
// or style, no other host.
//
// In mock mode the source is invented (mock), says so on every page and marks
// each JSON answer; nothing in it is evidence.
package controlplane
