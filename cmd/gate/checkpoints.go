package main

import (
	"context"
	"fmt"
	"path/filepath"

	"writegate/commands/checkpoints"
	"writegate/eventlog"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/frame"
)

// witnesses are the clients of the witnesses that the settings name.
func (s *settings) witnesses() ([]*checkpoint.Witness, error) {
	var list []*checkpoint.Witness
	for _, url := range splitList(s.WitnessURLs) {
		w, err := checkpoint.NewWitness(url, splitList(s.WitnessKeys), nil)
		if err != nil {
			return nil, err
		}
		list = append(list, w)
	}
	return list, nil
}

// witnessFaults are witnesses that could not be asked or would not be believed.
func (s *settings) witnessFaults() (faults []string) {
	if s.WitnessURLs == "" && s.WitnessKeys != "" {
		return []string{"GATE_WITNESS_KEYS needs GATE_WITNESS_URLS: a key without a witness checks nothing"}
	}
	if s.WitnessURLs != "" && s.AuditOrigin == "" {
		faults = append(faults, "GATE_WITNESS_URLS needs GATE_AUDIT_ORIGIN, the name under which the witnesses know the log: about one of another name they can't be asked. Of a log that is there `logverify wal --json` shows the name (origin)")
	}
	if s.WitnessURLs != "" && s.WitnessKeys == "" {
		return append(faults, "GATE_WITNESS_URLS needs GATE_WITNESS_KEYS: cosignatures are believed under known keys alone")
	}
	if _, err := s.witnesses(); err != nil {
		faults = append(faults, "GATE_WITNESS_URLS or GATE_WITNESS_KEYS: "+err.Error())
	}
	return faults
}

// newKeeper makes what keeps the checkpoints of the log. Notes that are there
// are held against the log with signing off as well.
func (g *service) newKeeper() (*checkpoints.Keeper, error) {
	s := g.settings
	fsys := frame.OS{} // checkpoints lie beside the log; its folder may have yet to be made
	if err := fsys.MkdirAll(filepath.Dir(s.AuditWALPath)); err != nil {
		return nil, fmt.Errorf("GATE_AUDIT_WAL_PATH: %w", err)
	}
	wal, err := fsys.RealPath(s.AuditWALPath)
	if err != nil {
		return nil, fmt.Errorf("GATE_AUDIT_WAL_PATH: %w", err)
	}
	witnesses, err := s.witnesses()
	if err != nil {
		return nil, exitWith(exitConfigured, err)
	}
	return checkpoints.New(checkpoints.Options{
		Folder: checkpoint.NewFolder(wal + frame.CheckpointsSuffix), Key: g.signingKey, Witnesses: witnesses,
		EveryEvents: uint64(s.CheckpointEveryEvents), Every: seconds(s.CheckpointEverySecs), LastOffer: g.courtesy,
		Logger: g.log, Step: g.step,
	}), nil
}

// stoppedLog gives what is known about the log whose file is wal, which no gate has
// open: the checkpoints beside it, and what the witnesses say, unless key is nil.
func (s *settings) stoppedLog(wal string, key *checkpoint.PrivateKey, trusted ...checkpoint.PublicKey) (func(whole bool) (eventlog.Outside, error), error) {
	if real, err := (frame.OS{}).RealPath(wal); err == nil { // else there is no log, nor a folder for one
		wal = real
	}
	witnesses, err := s.witnesses()
	if err != nil {
		return nil, exitWith(exitConfigured, err)
	}
	return checkpoints.New(checkpoints.Options{Folder: checkpoint.NewFolder(wal + frame.CheckpointsSuffix), Key: key, Trusted: trusted, Witnesses: witnesses, Stopped: true}).Papers, nil
}

// besideOf is stoppedLog without the witnesses.
func (s *settings) besideOf(wal string) (_ eventlog.Outside, err error) {
	var trusted []checkpoint.PublicKey
	if s.SigningEnabled {
		key, err := checkpoint.LoadPublicKey(s.SigningPublicKey)
		if err != nil {
			return nil, exitWith(exitConfigured, fmt.Errorf("GATE_EVIDENCE_SIGNING_PUBLIC_KEY_PATH: %w", err))
		}
		trusted = append(trusted, key)
	}
	unasked := *s
	unasked.WitnessURLs = ""
	known, err := unasked.stoppedLog(wal, nil, trusted...)
	if err != nil {
		return nil, err
	}
	return known(true)
}

// judgeOutside holds checkpoints and witnesses against the log, before anything
// is appended to it.
func (g *service) judgeOutside(ctx context.Context) {
	anchor, ok, err := g.keeper.Judge(ctx)
	if ok {
		g.recovery.Anchors = append(g.recovery.Anchors, anchor)
	}
	if g.damaged = damage(g.events.Serving()); err != nil && g.damaged == nil {
		g.damaged = contradict(err)
	}
}

// keepCheckpoints signs and offers checkpoints from now on.
func (g *service) keepCheckpoints(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	g.work.Go(func() {
		defer close(ended)
		g.keeper.Run(ctx)
	})
	g.endKeeping = func() {
		cancel()
		<-ended
	}
}
