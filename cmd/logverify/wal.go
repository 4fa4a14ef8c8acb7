package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
)

type walFlags struct {
	from, to    uint64
	workers     int
	receipts    []string
	checkpoints []string
	keys        []string
	json        bool
}

// walCommand is "logverify wal FILE".
func (c *runner) walCommand() *cobra.Command {
	var f walFlags
	cmd := &cobra.Command{
		Use:     "wal FILE",
		Short:   "Check a write-ahead log: every sum, hash, link and number",
		Long:    aboutWAL,
		Example: examplesWAL,
		Args:    asUsage(cobra.ExactArgs(1)),
		RunE:    func(_ *cobra.Command, args []string) error { return c.verifyWAL(args[0], f) },
	}
	cmd.Flags().Uint64Var(&f.from, "from-seq", 0, "first event to check (then the verdict is at best partial)")
	cmd.Flags().Uint64Var(&f.to, "to-seq", 0, "last event to check (then the verdict is at best partial)")
	cmd.Flags().IntVar(&f.workers, "workers", 0, "how many processors to use (0: all)")
	cmd.Flags().StringArrayVar(&f.receipts, "receipts", nil, "folder or file of receipts to hold against the log; may be repeated")
	cmd.Flags().StringArrayVar(&f.checkpoints, "checkpoint", nil, "signed note to hold against the log; may be repeated")
	keyFlag(cmd, &f.keys)
	jsonFlag(cmd, &f.json)
	return cmd
}

func keyFlag(cmd *cobra.Command, keys *[]string) {
	cmd.Flags().StringArrayVar(keys, "key", nil, terminal.KeyUsage)
}

func jsonFlag(cmd *cobra.Command, json *bool) {
	cmd.Flags().BoolVar(json, "json", false, "print the report as one JSON object")
}

func (c *runner) verifyWAL(file string, f walFlags) error {
	switch {
	case f.workers < 0:
		return usageError{errors.New("--workers can't be negative")}
	case f.to > 0 && f.from > f.to:
		return usageError{fmt.Errorf("--from-seq %d comes after --to-seq %d", f.from, f.to)}
	}
	// Papers are read first: what a running gate writes later is then no surprise.
	papers, err := c.papers(file, f)
	if err != nil {
		return err
	}
	set, err := frame.Discover(c.ctx, frame.OS{}, file)
	if err != nil {
		return err
	}
	report, err := c.judgeSet(&set, papers, f)
	if err = errors.Join(err, set.Close()); err != nil {
		return err
	}
	return c.tell(report, f.json)
}

func (c *runner) papers(file string, f walFlags) (evidence.Outside, error) {
	keys, err := parseKeys(f.keys)
	if err != nil {
		return evidence.Outside{}, err
	}
	return c.inputs().Kept(file, f.receipts, f.checkpoints, keys)
}

func (c *runner) judgeSet(set *frame.Set, papers evidence.Outside, f walFlags) (frame.Report, error) {
	shown := terminal.NewProgress(c.stderr, "verifying", true)
	report, err := papers.Verify(c.ctx, set, frame.Options{From: f.from, To: f.to, Workers: f.workers, Progress: shown.Step})
	return report, errors.Join(err, shown.Done())
}
