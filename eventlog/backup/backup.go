// Package backup copies a log with all that belongs to it, and puts such a copy
// back.
//
// # The story
//
// Make opens the files of the log at one moment, as a verifier does, so a gate
// may go on writing: sealed segments do not change any more, and of the active
// one only the durable beginning is taken. The copy is verified before the
// manifest, backup.json, is written: a folder without one is not a backup.
//
// The store of the projections is not copied: folding the log gives it anew. A copy
// of it would be believed by a start, and nothing in it is signed or hashed: an
// approval that nobody gave could be written into it.
//
// Restore believes nothing. Every file is held against the manifest, the log is
// verified, and it is written into empty places only: an old chain that goes on
// where a newer one was is a fork. The log's own file gets its name last.
//
// Sources: design/eventlog.md part 11.
package backup

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"writegate/eventlog"
	"writegate/eventlog/frame"
)

// Errors of Make and Restore.
var (
	// ErrLog says that the log, its copy, or a log before it does not verify; the report says why.
	ErrLog = errors.New("the log does not verify")
	// ErrBusy says that another process uses what has to stand still.
	ErrBusy = errors.New("in use by another process")
	// ErrNotEmpty says that a place that has to be empty is not.
	ErrNotEmpty = errors.New("not empty")
	// ErrBackup says that a folder is not the backup that its manifest describes.
	ErrBackup = errors.New("not a whole backup")
)

// Places are the paths of a gate's files. All but Log may be empty.
type Places struct {
	Log      string // W
	JSONL    string
	Store    string // folder of the projections
	Policies string // folder of policy versions

	// Outside gives what is known, away from its files, about the log whose file
	// is wal; nil is nothing. Log and backup are held against it.
	Outside func(wal string) (eventlog.Outside, error)
	// Judged is told of what a restore found about the log of the backup, before it
	// copies anything; nil: nobody.
	Judged func(*frame.Set, *frame.Report)

	aside string // where a restored log goes that another follows; "" = to Log
}

// Names inside a backup.
const (
	ManifestName = "backup.json"
	logName      = "log/audit.wal"
	jsonlName    = "audit.jsonl"
	storeName    = "projections"
	policiesName = "policies"
)

const format = "gate.backup.v1"

// A Manifest says what a backup holds.
type Manifest struct {
	Format        string `json:"format"`
	LogID         string `json:"log_id"`
	LastSeq       uint64 `json:"last_seq"`
	LastEventHash string `json:"last_event_hash"`
	MadeAt        string `json:"made_at"`
	Running       bool   `json:"running"`     // a gate was writing the log
	Projections   bool   `json:"projections"` // their store is in it, as older versions copied it; a restore leaves it out
	Files         []File `json:"files"`
}

// A File is one file of a backup, by its path inside of it.
type File struct {
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Make copies what is at p into dir, which must be empty or missing, and
// verifies the copy. report is the source's. progress may be nil.
//
// Errors: ErrLog, ErrBusy, ErrNotEmpty, or the file system's.
func Make(ctx context.Context, p Places, dir string, progress func(done, total int64)) (m Manifest, report frame.Report, err error) {
	if err := mustBeEmpty(dir, ofVolume); err != nil {
		return m, report, fmt.Errorf("%w: %s", err, besideBackup(dir))
	}
	known, err := p.outside(p.Log) // first: what a running gate signs later is then no surprise
	if err != nil {
		return m, report, err
	}
	set, err := frame.Discover(ctx, frame.OS{}, p.Log)
	if err != nil {
		return m, report, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	if report, err = judge(ctx, &set, known, math.MaxUint64, progress); err != nil {
		return m, report, err
	}
	if !fit(&report) {
		return m, report, fmt.Errorf("%w: %s", ErrLog, firstFault(&report))
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w. %s is no backup: remove what is in it before you repeat this", err, dir)
		}
	}()
	c := &copier{ctx: ctx, root: dir}
	m = Manifest{
		Format: format, LogID: report.LogID, LastSeq: report.End.Seq, LastEventHash: hex.EncodeToString(report.End.Hash[:]),
		MadeAt: time.Now().UTC().Format(time.RFC3339Nano), Running: set.Live,
	}
	if err := c.log(&set, &report, p.Log); err != nil {
		return m, report, err
	}
	if err := c.beside(p, report.End.Seq); err != nil {
		return m, report, err
	}
	m.Files = c.files
	if err := p.verifyCopy(ctx, filepath.Join(dir, logName), &m, false); err != nil {
		return m, report, err
	}
	return m, report, c.finish(&m)
}

// besideBackup says what to do about a folder that has something in it.
func besideBackup(dir string) string {
	names, err := os.ReadDir(dir)
	own := []string{filepath.Dir(logName), jsonlName, policiesName}
	if err != nil || slices.ContainsFunc(names, func(e fs.DirEntry) bool { return !slices.Contains(own, e.Name()) && !ofVolume(e.Name()) }) {
		return "a backup goes into a folder of its own: name one that is empty or missing"
	}
	return "it looks like what is left of a backup that was cut short, which has no " + ManifestName + ": name another folder, or look at it and remove what is in it"
}

// fit tells whether the log may be backed up: it is whole, but for an end that a
// crash tore, which was never acknowledged and is left out.
func fit(r *frame.Report) bool {
	for _, f := range r.Faults {
		if f.Kind != frame.TornTail && f.Kind != frame.IncompleteBatch {
			return false
		}
	}
	return r.Status != frame.Corruption && r.FaultsTotal == len(r.Faults)
}

func firstFault(r *frame.Report) string {
	if len(r.Faults) == 0 {
		return string(r.Status)
	}
	return fmt.Sprintf("%s: %s", r.Faults[0].Kind, r.Faults[0].Detail)
}

// log copies the segments, the head file and the folders of the log.
func (c *copier) log(set *frame.Set, r *frame.Report, w string) error {
	for _, s := range set.Sealed {
		if err := c.read(logName+frame.SegmentsSuffix+"/"+s.Name, s.File, s.Size); err != nil {
			return err
		}
	}
	if err := c.read(logName, set.Active.File, r.End.Offset); err != nil {
		return err
	}
	if set.Head != nil {
		head, slots := *set.Head, make([]byte, 2*frame.SlotSize)
		head.Clean = false // wherever the copy lies it can't vouch for what followed the log
		copy(slots[frame.Slot(head.Counter):], head.Encode())
		if err := c.write(logName+frame.HeadSuffix, bytes.NewReader(slots)); err != nil {
			return err
		}
	}
	real, err := frame.OS{}.RealPath(w) // a rotation may be under way: there may be no such file just now
	if err != nil {
		return err
	}
	switch _, err := os.Lstat(filepath.Join(real+frame.RetiredSuffix, frame.RetiringName)); {
	case err == nil:
		return fmt.Errorf("%w: a log of this place was begun to be put aside, and not to the end: complete that first, by `gate log new --accept-loss`", ErrLog)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	earlier := func(inside string) bool {
		_, err := os.Stat(filepath.Join(real+frame.RetiredSuffix, inside))
		return ofEarlierLog(inside) && !errors.Is(err, fs.ErrNotExist) // a link that leads nowhere is no evidence, and what is missing of a log is found out below
	}
	covered := func(name string) bool { return noteWithin(name, r.End.Seq) }
	if !set.Live {
		covered = func(name string) bool { return noteWithin(name, math.MaxUint64) } // none is of later events
	}
	return errors.Join(
		c.tree(logName+frame.QuarantineSuffix, real+frame.QuarantineSuffix, nil),
		c.tree(logName+frame.RetiredSuffix, real+frame.RetiredSuffix, earlier),
		c.tree(logName+frame.CheckpointsSuffix, real+frame.CheckpointsSuffix, covered),
	)
}

// ofEarlierLog tells whether a file below the folder of the logs before this one lies in
// the folder of one of them. What a retirement that is under way writes there does not:
// it names moves of one place at one time.
func ofEarlierLog(inside string) bool {
	folder, file, _ := strings.Cut(filepath.ToSlash(inside), "/")
	id, err := hex.DecodeString(folder)
	return err == nil && len(id) == len(frame.Header{}.LogID) && folder == hex.EncodeToString(id) && file != ""
}

// noteWithin leaves out what was signed after the files were opened: a note of
// more events than the copy has would accuse it.
func noteWithin(name string, last uint64) bool {
	size, err := strconv.ParseUint(strings.TrimSuffix(filepath.Base(name), ".note"), 10, 64)
	return err == nil && strings.HasSuffix(name, ".note") && size <= last
}

// beside copies what is not the log.
func (c *copier) beside(p Places, last uint64) error {
	if err := c.jsonl(p.JSONL, last); err != nil || p.Policies == "" {
		return err
	}
	return c.tree(policiesName, p.Policies, nil)
}

// outside is what is known about a log away from its files; nil is nothing.
func (p *Places) outside(wal string) (eventlog.Outside, error) {
	if p.Outside == nil {
		return nil, nil
	}
	return p.Outside(wal)
}

// judge verifies a log with what is known about it. What is known of events after
// last is a warning.
func judge(ctx context.Context, set *frame.Set, known eventlog.Outside, last uint64, progress func(done, total int64)) (r frame.Report, err error) {
	o := frame.Options{Progress: progress}
	var warnings []string
	if known != nil {
		if o.Anchors, warnings, err = known.Anchors(ctx, set); err != nil {
			return r, err
		}
	}
	o.Anchors = slices.DeleteFunc(o.Anchors, func(a frame.Anchor) bool {
		later := a.Seq > last
		if later && !a.Untrusted {
			warnings = append(warnings, fmt.Sprintf("%s knows event %d, the backup ends with %d", a.Source, a.Seq, last))
		}
		return later
	})
	if r, err = frame.Verify(ctx, *set, o); err != nil {
		return r, err
	}
	for _, w := range warnings {
		r.Warn(w)
	}
	return r, nil
}

// verifyCopy judges a copied log, with those before it, and holds it against a manifest. older says that it
// may be known that the log went on behind the backup.
func (p *Places) verifyCopy(ctx context.Context, path string, m *Manifest, older bool) (err error) {
	known, err := p.outside(path)
	if err != nil {
		return err
	}
	set, err := frame.Discover(ctx, frame.OS{}, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	last := uint64(math.MaxUint64)
	if older {
		last = m.LastSeq
	}
	r, err := judge(ctx, &set, known, last, nil)
	if err == nil && p.Judged != nil {
		p.Judged(&set, &r)
	}
	if err != nil {
		return err
	}
	switch {
	case r.Status != frame.OK:
		return fmt.Errorf("%w: the copy %s: %s", ErrLog, path, firstFault(&r))
	case r.LogID != m.LogID || r.End.Seq != m.LastSeq || hex.EncodeToString(r.End.Hash[:]) != m.LastEventHash:
		return fmt.Errorf("%w: the copy %s is of log %s and ends with event %d, hash %x, and its manifest says log %s, event %d, hash %s", ErrLog, path, r.LogID, r.End.Seq, r.End.Hash, m.LogID, m.LastSeq, m.LastEventHash)
	}
	faults, err := eventlog.AncestorFaults(ctx, frame.OS{}, path, eventlog.Vouched(ctx, &set, &r, 1))
	if len(faults) > 0 {
		return fmt.Errorf("%w: a start on a copy would need a log that it follows: %w", ErrLog, errors.Join(faults...))
	}
	return err
}

// finish syncs all folders and writes the manifest last.
func (c *copier) finish(m *Manifest) error {
	if err := syncFolders(c.root); err != nil {
		return err
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := writeSynced(c.ctx, filepath.Join(c.root, ManifestName), bytes.NewReader(append(b, '\n')), nil); err != nil {
		return err
	}
	return errors.Join(frame.OS{}.SyncDir(c.root), frame.OS{}.SyncDir(filepath.Dir(filepath.Clean(c.root))))
}

// ofVolume tells what a volume has at its root before anybody writes to it. It may be
// root's alone.
func ofVolume(name string) bool { return name == "lost+found" }

// mustBeEmpty finds a folder missing, or with nothing in it but names that may stay.
func mustBeEmpty(dir string, stays func(name string) bool) error {
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && slices.ContainsFunc(names, func(e fs.DirEntry) bool { return !stays(e.Name()) }) {
		err = fmt.Errorf("%s: %w", dir, ErrNotEmpty)
	}
	return err
}
