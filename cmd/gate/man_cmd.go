package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write a man page of each command into a folder", Args: cobra.ExactArgs(1),
		Example: "  gate man /usr/local/share/man/man1",
		RunE: func(c *cobra.Command, args []string) error {
			if _, err := os.Stat(args[0]); errors.Is(err, fs.ErrNotExist) {
				if err := errors.Join(os.MkdirAll(args[0], 0o755), os.Chmod(args[0], 0o755)); err != nil {
					return exitWith(exitFailed, err)
				}
			}
			root := c.Root()
			root.DisableAutoGenTag = true
			if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "gate " + version, Manual: "Gate"}, args[0]); err != nil {
				return exitWith(exitFailed, err)
			}
			pages, err := filepath.Glob(filepath.Join(args[0], "gate*.1"))
			for _, page := range pages {
				if err == nil {
					err = os.Chmod(page, 0o644) // they are for everybody, unlike all else that the gate writes
				}
			}
			if err != nil {
				return exitWith(exitFailed, err)
			}
			_, err = fmt.Fprintf(a.out, "%d pages are in %s.\n", len(pages), args[0])
			return written(err)
		},
	}
}
