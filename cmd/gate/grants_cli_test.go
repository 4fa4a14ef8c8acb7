package main

import (
	"net/http"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGrantsOnTheCommandLine(t *testing.T) {
	t.Parallel()
	w := startGranted(t)
	id, token := w.register(t, "bot")
	require.Equal(t, http.StatusAccepted, w.as(t, token, bump(1)).status)
	code, out, errs := w.cli(t, "", "grants", "replay", id, "--when", onHeld)
	require.Zero(t, code, errs)
	require.Contains(t, out, "would have covered 1 of 1 statements")
	require.Regexp(t, `UPDATE +public\.held_notes +held +req_`, out)
	code, out, errs = w.cli(t, "", "grants", "replay", id, "--when", onHeld, "--for", "2h")
	require.Zero(t, code, errs)
	require.Contains(t, out, "would have covered 0 of 1 statements")

	create := []string{"grants", "create", id, "--when", onHeld, "--uses", "2", "--rows", "5", "--reason", "the catalogue"}
	code, _, errs = w.cli(t, "n\n", create...)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "would have covered 1 of 1")
	code, out, errs = w.cli(t, "y\n", create...)
	require.Zero(t, code, errs)
	grant := regexp.MustCompile(`gra_[0-9a-f-]+`).FindString(out)
	require.Contains(t, out, grant+" is given, by operator, until 20")
	require.Equal(t, http.StatusOK, w.as(t, token, bumpUpTo(2)).status)

	_, out, _ = w.cli(t, "", "grants", "list")
	require.Regexp(t, grant+` +active +`+id+` .*1 of 2 +3 of 5 +query_types`, out)
	_, out, _ = w.cli(t, "", "grants", "get", grant)
	require.Regexp(t, `rows +3 of 5 left; 2 changed or may be, 0 kept`, out)
	code, out, errs = w.cli(t, "", "grants", "revoke", grant, "--note", "done")
	require.Zero(t, code, errs)
	require.Contains(t, out, grant+" is revoked, by operator")
	code, _, errs = w.cli(t, "", "grants", "revoke", grant)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "grant_ended")
	_, out, _ = w.cli(t, "", "grants", "list")
	require.Equal(t, "No grant fits.\n", out)
	_, out, _ = w.cli(t, "", "grants", "list", "--status", "revoked", "--json")
	require.Contains(t, out, `"note":"done"`)
	code, _, errs = w.cli(t, "", "grants", "create", id, "--when", "true", "--uses", "1", "--reason", "x", "--yes")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "rests_on_claim")
}
