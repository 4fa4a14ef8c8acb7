package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
)

// jsonlCommand is "logverify jsonl FILE".
func (c *runner) jsonlCommand() *cobra.Command {
	var wals []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "jsonl FILE",
		Short:   "Check a readable copy of the log, line by line",
		Long:    aboutJSONL,
		Example: examplesJSONL,
		Args:    asUsage(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			var o evidence.Options
			if len(wals) > 1 {
				return usageError{errors.New("--wal is given twice: a copy is of one log")}
			}
			for _, wal := range wals {
				header, damage, err := c.header(wal)
				if err != nil {
					return err
				}
				o.Header = header
				o.At = func(upTo uint64) (uint64, [32]byte, error) {
					if damage != nil {
						return 0, [32]byte{}, damage
					}
					return c.hashAt(wal, upTo)
				}
			}
			return c.verifyDocument(args[0], o, evidence.VerifyJSONL, asJSON)
		},
	}
	cmd.Flags().StringArrayVar(&wals, "wal", nil, "log that it is a copy of")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// header reads segment 0's header of a log; damage says why there is none.
func (c *runner) header(wal string) (header *frame.Header, damage, err error) {
	set, err := frame.Discover(c.ctx, frame.OS{}, wal)
	if err != nil {
		return nil, nil, err
	}
	h, damage := set.Genesis()
	if damage == nil {
		header = &h
	}
	return header, damage, set.Close()
}

// hashAt reads a log up to an event, as far as nothing is wrong with it.
func (c *runner) hashAt(wal string, upTo uint64) (seq uint64, hash [32]byte, err error) {
	set, err := frame.Discover(c.ctx, frame.OS{}, wal)
	if err != nil {
		return 0, hash, err
	}
	for seq, hash = range set.Hashes(c.ctx, upTo) {
	}
	return seq, hash, errors.Join(c.ctx.Err(), set.Close())
}

// bundleCommand is "logverify bundle FILE".
func (c *runner) bundleCommand() *cobra.Command {
	var keys []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "bundle FILE",
		Short:   "Check an evidence bundle, without the log it came from",
		Long:    aboutBundle,
		Example: examplesBundle,
		Args:    asUsage(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			trusted, err := parseKeys(keys)
			if err != nil {
				return err
			}
			return c.verifyDocument(args[0], evidence.Options{Keys: trusted}, evidence.Verify, asJSON)
		},
	}
	keyFlag(cmd, &keys)
	jsonFlag(cmd, &asJSON)
	return cmd
}

type judgeOf func(context.Context, io.Reader, evidence.Options) (frame.Report, error)

// verifyDocument streams a file, or standard input, through its judge.
func (c *runner) verifyDocument(file string, o evidence.Options, judge judgeOf, asJSON bool) error {
	in, size, err := c.inputs().Open(file)
	if err != nil {
		return err
	}
	shown := terminal.NewProgress(c.stderr, "verifying", true)
	o.Path = file
	o.Progress = func(done int64) { shown.Step(done, max(size, done)) }
	report, err := judge(c.ctx, in, o)
	if err = errors.Join(err, shown.Done(), in.Close()); err != nil {
		return err
	}
	return c.tell(report, asJSON)
}
