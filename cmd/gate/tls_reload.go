package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"writegate/eventlog/event"
	"writegate/http/controlplane"
	"writegate/http/gateapi"
	"writegate/http/httpd"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/pgwire"
)

// How certificates are looked after (design/execution-and-wire.md part 7).
const (
	lookEvery      = 30 * time.Second // at the files, and at what is enforced at the database's side
	tlsWarnsBefore = 14 * 24 * time.Hour
)

// sideUsers is the side of the wire listener's users, which are no certificates
// and have no end.
const sideUsers = "wire users"

// A tlsKeeper reads certificates anew, for both sides of the gate or of the
// control plane, when one of their files changes and on SIGHUP, and knows when
// they end.
type tlsKeeper struct {
	log   *slog.Logger
	every time.Duration
	hup   chan os.Signal

	mu    sync.Mutex // guards the sides
	sides []*tlsSide
}

// A tlsSide is the files of one side and what became of them.
type tlsSide struct {
	name    string // as gateapi.TLSState names it; of the control plane: browsers, gate
	paths   []string
	reload  func() (expires time.Time, err error) // the zero time: it does not end
	stamps  []fileStamp
	expires time.Time
	failure string // why the newest files are not in use; "" where they are
	told    string // the status that the log was told
}

// newTLSKeeper also takes SIGHUP, which would end a process that does not ask
// for it. close gives the signal back.
func newTLSKeeper(log *slog.Logger, every time.Duration) *tlsKeeper {
	k := &tlsKeeper{log: log.With("source", "tls"), every: every, hup: make(chan os.Signal, 1)}
	signal.Notify(k.hup, syscall.SIGHUP)
	return k
}

func (k *tlsKeeper) close() { signal.Stop(k.hup) }

// keepListener reads the material of the listener; nil is cleartext.
func (k *tlsKeeper) keepListener(s *settings) (*httpd.TLS, error) {
	if s.TLSCert == "" {
		return nil, nil
	}
	material, err := s.listenerTLS()
	if err != nil {
		return nil, err
	}
	return material, k.keep("clients", material.Reload, s.TLSCert, s.TLSKey, s.TLSClientCA)
}

func (s *settings) listenerTLS() (*httpd.TLS, error) {
	return httpd.NewTLS(httpd.TLSFiles{
		CertPath: s.TLSCert, KeyPath: s.TLSKey, ClientCAPath: s.TLSClientCA, RequireClientCert: s.TLSRequireClientCert, MinVersion: s.TLSMinVersion,
	}, time.Now)
}

func (k *tlsKeeper) keepDatabase(s *settings, db *pgexec.DB) error {
	if s.UpstreamTLSMode != pgexec.TLSVerifyFull {
		return nil
	}
	return k.keep("database", db.ReloadTLS, db.TLSFiles()...)
}

// keepPlane keeps both sides of the control plane: its listener, whose material
// it gives (nil is cleartext), and its way to the gate (nil in mock mode).
func (k *tlsKeeper) keepPlane(s *controlPlaneSettings, backend *controlplane.Backend) (*httpd.TLS, error) {
	if backend != nil && s.BackendCA+s.BackendCert != "" {
		if err := k.keep("gate", backend.Reload, backend.Paths()...); err != nil {
			return nil, err
		}
	}
	if s.TLSCert == "" {
		return nil, nil
	}
	material, err := httpd.NewTLS(httpd.TLSFiles{CertPath: s.TLSCert, KeyPath: s.TLSKey}, time.Now)
	if err != nil {
		return nil, planeNames(err)
	}
	reload := func() (time.Time, error) {
		expires, err := material.Reload()
		return expires, planeNames(err)
	}
	return material, k.keep("browsers", reload, s.TLSCert, s.TLSKey)
}

// planeNames puts the control plane's settings in the place of the gate's.
func planeNames(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.ReplaceAll(err.Error(), "GATE_TLS_", "CONTROL_PLANE_TLS_"))
}

// keepUsers reads the users of the wire listener, which change as certificates
// do; nil where nobody logs in with a password.
func (k *tlsKeeper) keepUsers(s *settings) (*pgwire.Users, error) {
	path := s.wireUsersPath()
	if path == "" {
		return nil, nil
	}
	users, err := pgwire.OpenUsers(path)
	if err != nil {
		return nil, err
	}
	return users, k.keep(sideUsers, func() (time.Time, error) { return time.Time{}, users.Reload() }, path)
}

// keep takes a side under watch; empty paths are left out.
func (k *tlsKeeper) keep(name string, reload func() (time.Time, error), paths ...string) error {
	side := &tlsSide{name: name, reload: reload, paths: slices.DeleteFunc(paths, func(p string) bool { return p == "" })}
	side.stamps = stampsOf(side.paths) // before reading: a change in between is seen at the next look
	expires, err := reload()
	if err != nil {
		return err
	}
	side.expires = expires
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sides = append(k.sides, side)
	k.tell(side)
	return nil
}

// run looks after the files until ctx ends.
func (k *tlsKeeper) run(ctx context.Context) {
	ticker := time.NewTicker(k.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.hup:
			k.look(true)
		case <-ticker.C:
			k.look(false)
		}
	}
}

// look reloads the sides whose files changed, or all. Files that were refused
// are tried again each time: a pair is often written one after the other.
func (k *tlsKeeper) look(all bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, side := range k.sides {
		stamps := stampsOf(side.paths)
		if all || side.failure != "" || !slices.Equal(stamps, side.stamps) {
			side.stamps = stamps
			k.reload(side)
		}
		k.tell(side)
	}
}

func (k *tlsKeeper) reload(side *tlsSide) {
	expires, err := side.reload()
	switch {
	case err == nil && side.name == sideUsers:
		side.failure = ""
		k.log.Info("the users of the wire listener were read anew")
	case err == nil:
		side.expires, side.failure = expires, ""
		k.log.Info("certificates were read anew", "side", side.name, "expires_at", event.Timestamp(expires))
	case side.name == sideUsers && err.Error() != side.failure:
		side.failure = err.Error()
		k.log.Error("a new users file of the wire listener is refused, so the users read before stay in use", "cause", side.failure)
	case err.Error() != side.failure:
		side.failure = err.Error()
		k.log.Error("new certificates are refused, so the old ones stay in use", "side", side.name, "cause", side.failure)
	}
}

// tell says once in the log that certificates end soon, or have ended.
func (k *tlsKeeper) tell(side *tlsSide) {
	status, message := side.lifetime(time.Now())
	if status == side.told {
		return
	}
	side.told = status
	switch status {
	case "expires_soon":
		k.log.Warn(message, "side", side.name)
	case gateapi.TLSExpired:
		k.log.Error(message, "side", side.name)
	}
}

// lifetime judges the end of what is in use.
func (s *tlsSide) lifetime(now time.Time) (status, message string) {
	at := s.expires.UTC().Format(time.RFC3339)
	switch {
	case s.expires.IsZero():
		return "ok", ""
	case now.After(s.expires):
		return gateapi.TLSExpired, fmt.Sprintf("The certificates ended at %s: nobody can connect. Put new ones in the place of their files.", at)
	case now.After(s.expires.Add(-tlsWarnsBefore)):
		return "expires_soon", fmt.Sprintf("The certificates end at %s. Put new ones in the place of their files.", at)
	}
	return "ok", fmt.Sprintf("The certificates are valid until %s.", at)
}

// states are what GET /health shows.
func (k *tlsKeeper) states() []gateapi.TLSState {
	k.mu.Lock()
	defer k.mu.Unlock()
	states := make([]gateapi.TLSState, 0, len(k.sides))
	for _, side := range k.sides {
		if side.name == sideUsers {
			continue
		}
		status, message := side.lifetime(time.Now())
		if side.failure != "" {
			message = "The newest files are refused and the old ones stay in use: " + side.failure + ". " + message
			if status != gateapi.TLSExpired {
				status = "reload_failed"
			}
		}
		states = append(states, gateapi.TLSState{Side: side.name, Status: status, ExpiresAt: event.Timestamp(side.expires), Message: message})
	}
	return states
}

// usersFailure says why the newest users file is not in use; "" where it is.
func (k *tlsKeeper) usersFailure() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, side := range k.sides {
		if side.name == sideUsers {
			return side.failure
		}
	}
	return ""
}

// A fileStamp changes when a file is written or another one takes its place.
type fileStamp struct {
	modified time.Time
	changed  syscall.Timespec // which no tool sets back
	size     int64
	inode    uint64
}

// stampsOf looks at files, through links; one that cannot be looked at has the
// zero stamp.
func stampsOf(paths []string) []fileStamp {
	stamps := make([]fileStamp, len(paths))
	for i, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		stamps[i] = fileStamp{modified: info.ModTime(), size: info.Size()}
		if sys, ok := info.Sys().(*syscall.Stat_t); ok {
			stamps[i].inode, stamps[i].changed = sys.Ino, sys.Ctim
		}
	}
	return stamps
}
