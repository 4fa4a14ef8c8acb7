package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"writegate/cmd/terminal"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
)

// A paperReport is the answer about one receipt or checkpoint.
type paperReport struct {
	Status frame.Status `json:"status"`
	Source string       `json:"source"` // receipt or checkpoint
	Path   string       `json:"path"`
	Detail string       `json:"detail"` // why it is not ok

	// Of a receipt.
	LogID     string `json:"log_id,omitempty"`
	Seq       uint64 `json:"seq,omitempty"`
	EventHash string `json:"event_hash,omitempty"`
	FirstSeq  uint64 `json:"first_seq,omitempty"`
	LastSeq   uint64 `json:"last_seq,omitempty"`
	Time      string `json:"time,omitempty"`
	KeyID     string `json:"key_id,omitempty"`

	// Of a checkpoint.
	Origin       string        `json:"origin,omitempty"`
	Size         uint64        `json:"size,omitempty"`
	Root         string        `json:"root,omitempty"`
	Cosignatures []cosignature `json:"cosignatures,omitempty"`
	Unknown      []string      `json:"unknown_signers,omitempty"`
	lines        []labelled    // for a person
}

type cosignature struct {
	Name string `json:"name"`
	Time string `json:"time"`
}

type labelled struct{ label, text string }

// receiptCommand is "logverify receipt FILE".
func (c *runner) receiptCommand() *cobra.Command {
	var keys []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "receipt FILE",
		Short:   "Check receipts: their form, signature and path",
		Long:    aboutReceipt,
		Example: examplesReceipt,
		Args:    asUsage(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			trusted, err := parseKeys(keys)
			if err != nil {
				return err
			}
			papers, err := c.inputs().Receipts(args[0])
			if err != nil {
				return err
			}
			for _, p := range papers {
				if err := c.tellPaper(judgeReceipt(p, trusted), asJSON); err != nil {
					return err
				}
			}
			return nil
		},
	}
	keyFlag(cmd, &keys)
	jsonFlag(cmd, &asJSON)
	return cmd
}

func judgeReceipt(p evidence.Paper, keys []checkpoint.PublicKey) paperReport {
	r := paperReport{Status: frame.OK, Source: "receipt", Path: p.Name}
	if p.Err != nil {
		r.Status, r.Detail = frame.Partial, p.Err.Error()
		return r
	}
	receipt, err := checkpoint.ParseReceipt(p.Text)
	if err != nil {
		return r.refused(err)
	}
	r.LogID, r.Seq, r.EventHash = hex.EncodeToString(receipt.LogID[:]), receipt.Seq, hex.EncodeToString(receipt.EventHash[:])
	r.FirstSeq, r.LastSeq = receipt.FirstSeq, receipt.FirstSeq+uint64(receipt.Count)-1
	r.Time, r.KeyID = event.Timestamp(receipt.Time), receipt.KeyID
	r.lines = []labelled{{"log", r.LogID}, {"event", fmt.Sprintf("%d, of the batch %d to %d", r.Seq, r.FirstSeq, r.LastSeq)}, {"hash", r.EventHash},
		{"signed", r.Time + " by " + r.KeyID}}
	if _, err := receipt.Check(keys...); err != nil {
		return r.refused(err)
	}
	return r
}

// refused tells what nobody known has signed from what is wrong.
func (r paperReport) refused(err error) paperReport {
	r.Status, r.Detail = frame.Corruption, err.Error()
	if errors.Is(err, checkpoint.ErrUnknownKey) {
		r.Status = frame.Partial
	}
	return r
}

// checkpointCommand is "logverify checkpoint FILE".
func (c *runner) checkpointCommand() *cobra.Command {
	var keys, witnesses []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "checkpoint FILE",
		Short:   "Check a signed checkpoint and the cosignatures of witnesses",
		Long:    aboutCheckpoint,
		Example: examplesCheckpoint,
		Args:    asUsage(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			trusted, err := parseKeys(keys)
			if err != nil {
				return err
			}
			for _, w := range witnesses {
				if _, _, err := checkpoint.ParseWitnessVKey(w); err != nil {
					return usageError{fmt.Errorf("--witness: %w", err)}
				}
			}
			in, _, err := c.inputs().Open(args[0])
			if err != nil {
				return err
			}
			text, err := io.ReadAll(io.LimitReader(in, checkpoint.MaxNote+1)) // one more is no note
			if err = errors.Join(err, in.Close()); err != nil {
				return err
			}
			return c.tellPaper(judgeNote(args[0], text, checkpoint.Keys{Log: trusted, Witnesses: witnesses}), asJSON)
		},
	}
	keyFlag(cmd, &keys)
	cmd.Flags().StringArrayVar(&witnesses, "witness", nil, "vkey of a witness to trust; may be repeated")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func judgeNote(path string, text []byte, keys checkpoint.Keys) paperReport {
	r := paperReport{Status: frame.OK, Source: "checkpoint", Path: path}
	if len(text) == 0 {
		r.Status, r.Detail = frame.Partial, "it is empty: what it was to be can't be judged"
		return r
	}
	n, err := checkpoint.Open(text, keys)
	if err != nil {
		return r.refused(err)
	}
	r.Origin, r.Size, r.Root, r.Unknown = n.Origin, n.Size, hex.EncodeToString(n.Root[:]), n.Unknown
	r.lines = []labelled{{"log", r.Origin}, {"events", fmt.Sprint(r.Size)}, {"root", r.Root}}
	for _, s := range n.Cosignatures {
		r.Cosignatures = append(r.Cosignatures, cosignature{s.Name, event.Timestamp(s.Time)})
		r.lines = append(r.lines, labelled{"witness", s.Name + ", " + event.Timestamp(s.Time)})
	}
	for _, name := range n.Unknown {
		r.lines = append(r.lines, labelled{"unknown", name})
	}
	if !n.Trusted {
		return r.refused(fmt.Errorf("%w; give the key of the log with --key", checkpoint.ErrUnknownKey))
	}
	for _, vkey := range keys.Witnesses { // each by itself: two keys may have one name
		name, _, _ := checkpoint.ParseWitnessVKey(vkey) // parsed before
		if by, err := checkpoint.Open(text, checkpoint.Keys{Log: keys.Log, Witnesses: []string{vkey}}); err != nil || len(by.Cosignatures) == 0 {
			r.Status, r.Detail = frame.Partial, fmt.Sprintf("the witness %s was asked for and has not cosigned it; give the key that it cosigns with (--witness), or a note that it has cosigned", name)
		}
	}
	return r
}

// tellPaper prints a report and keeps the worst exit code of all.
func (c *runner) tellPaper(r paperReport, asJSON bool) error {
	if code := exitOf(r.Status); c.code == exitOK || code == exitCorruption {
		c.code = code
	}
	var b bytes.Buffer
	if asJSON {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(r); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(&b, "%s: %s\n", terminal.Visible(r.Path), r.Status)
		if r.Detail != "" {
			fmt.Fprintf(&b, "  %s\n", terminal.Visible(r.Detail))
		}
		for _, l := range r.lines {
			fmt.Fprintf(&b, "  %-13s %s\n", l.label, terminal.Visible(l.text))
		}
	}
	_, err := c.stdout.Write(b.Bytes())
	return err
}
