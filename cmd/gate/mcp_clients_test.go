package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"writegate/agentctl"
	"writegate/fixtures/browser"
	"writegate/fixtures/faultproxy"
	"writegate/fixtures/issuer"
)

// Every client goes through one list of what an agent meets, over HTTP and by `gate mcp`. A
// client is one row of toolClients, and what it meets one row of toolItems.

// othersClients names the folder in which `make mcp` has installed the clients of others.
const othersClients = "MCP_CLIENTS"

const othersSources = "../../fixtures/mcpclients"

// A toolClient is a client of the protocol's that nobody here wrote, by one way in.
type toolClient struct {
	name    string
	others  bool // it is installed by `make mcp`
	tells   bool // that a call is in progress
	connect func(t *testing.T, w *agentWorld, token, installed string, told chan<- any) toolCaller
}

// A toolCaller calls one method after the other, with the result as the protocol has it.
type toolCaller func(ctx context.Context, method string, params map[string]any) (result json.RawMessage, err error)

func toolClients() (all []toolClient) {
	for _, d := range doors {
		all = append(all, toolClient{"go, " + d.name, false, true, func(t *testing.T, w *agentWorld, token, _ string, told chan<- any) toolCaller {
			return goCaller(d.connect(t, w, token, told))
		}})
	}
	for _, way := range []string{"http", "stdio"} {
		all = append(all,
			toolClient{"typescript, " + way, true, true, func(t *testing.T, w *agentWorld, token, installed string, told chan<- any) toolCaller {
				return typeScriptCaller(t, w, token, installed, way, told)
			}},
			toolClient{"inspector, " + way, true, false, func(t *testing.T, w *agentWorld, token, installed string, _ chan<- any) toolCaller {
				return inspectorCaller(t, w, token, installed, way)
			}})
	}
	return all
}

func goCaller(s *mcp.ClientSession) toolCaller {
	return func(ctx context.Context, method string, params map[string]any) (json.RawMessage, error) {
		var result any
		var err error
		switch method {
		case "tools/list":
			result, err = s.ListTools(ctx, nil)
		case "resources/read":
			result, err = s.ReadResource(ctx, &mcp.ReadResourceParams{URI: params["uri"].(string)})
		default:
			result, err = s.CallTool(ctx, &mcp.CallToolParams{Name: params["name"].(string), Arguments: params["arguments"], Meta: mcp.Meta{"progressToken": "p"}})
		}
		if err != nil {
			return nil, err
		}
		return json.Marshal(result)
	}
}

// typeScriptCaller is the official TypeScript client, in a process that lasts.
func typeScriptCaller(t *testing.T, w *agentWorld, token, installed, way string, told chan<- any) toolCaller {
	cmd := exec.Command("node", filepath.Join(nodeFolder(t, installed, othersSources, "client.mjs"), "client.mjs"), way, w.base)
	cmd.Env, cmd.Stderr = append(os.Environ(), "GATE_AGENT_TOKEN="+token), os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		require.NoError(t, cmd.Wait())
	})
	lines := bufio.NewReader(out)
	return func(_ context.Context, method string, params map[string]any) (json.RawMessage, error) {
		call, err := json.Marshal(map[string]any{"method": method, "params": params})
		if err != nil {
			return nil, err
		}
		if _, err := in.Write(append(call, '\n')); err != nil {
			return nil, err
		}
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return nil, err
			}
			var said struct {
				Progress bool
				Result   json.RawMessage
				Error    string
			}
			switch err := json.Unmarshal(line, &said); {
			case err != nil:
				return nil, err
			case said.Error != "":
				return nil, errors.New(said.Error)
			case said.Progress:
				told <- true
			default:
				return said.Result, nil
			}
		}
	}
}

// inspectorCaller is the inspector's command line: a process for each call.
func inspectorCaller(t *testing.T, w *agentWorld, token, installed, way string) toolCaller {
	program, err := filepath.Abs(filepath.Join(installed, "node_modules/.bin/mcp-inspector"))
	require.NoError(t, err)
	target := []string{"--cli", w.base + "/mcp", "--transport", "http", "--header", "Authorization: Bearer " + token, "--stored-auth-only"}
	if way == "stdio" {
		target = []string{"--cli", "--transport", "stdio", "-e", "GATE_AGENT_TOKEN=" + token, "-e", "PATH=" + os.Getenv("PATH"), "-e", "GATE_URL=" + w.base, "gate", "mcp"}
	}
	home := t.TempDir()
	return func(ctx context.Context, method string, params map[string]any) (json.RawMessage, error) {
		args := append(slices.Clone(target), "--format", "json", "--method", method)
		if uri, ok := params["uri"].(string); ok {
			args = append(args, "--uri", uri)
		}
		if tool, ok := params["name"].(string); ok {
			arguments, err := json.Marshal(params["arguments"])
			if err != nil {
				return nil, err
			}
			args = append(args, "--tool-name", tool, "--tool-args-json", string(arguments))
		}
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env = append(os.Environ(), "HOME="+home)
		var out, complaints bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &complaints
		err := cmd.Run()
		if len(bytes.TrimSpace(out.Bytes())) == 0 {
			return nil, fmt.Errorf("%w: %s", err, &complaints)
		}
		var said struct{ Result json.RawMessage } // a tool that refuses ends the command with a failure, too
		if err := json.Unmarshal(out.Bytes(), &said); err != nil {
			return nil, fmt.Errorf("%w: %s%s", err, &out, &complaints)
		}
		if said.Result == nil {
			return out.Bytes(), nil
		}
		return said.Result, nil
	}
}

// listPolicy has a rule for each thing that an agent meets.
const listPolicy = `
schema: gate.policy/v1
name: listed
version: 1.0.0
facts: facts/v1
rules:
  - id: filter-required
    decision: BLOCK
    reason_code: unfiltered_write
    message: This would change every row.
    remedy: Add a key, such as WHERE id = 7.
    match: { query_types: [UPDATE, DELETE], where: [none] }
  - id: soon-over
    decision: REQUIRE_APPROVAL
    reason_code: soon_over
    match: { query_types: [DELETE], tables_written: [public.customers] }
    approval: { ttl_seconds: 1 }
  - id: deletes-ask
    decision: REQUIRE_APPROVAL
    reason_code: deletes_ask
    match: { query_types: [DELETE] }
  - id: open
    decision: ALLOW
    reason_code: open
    match: { query_types_only: [SELECT, INSERT, UPDATE] }
`

// A toolJourney is one client on its way through the list.
type toolJourney struct {
	*agentWorld
	call  toolCaller
	tells bool // that a call is in progress
	told  chan any
	proxy *faultproxy.Proxy // between gate and database
	start func()            // the gate again, where it was
	agent string            // its id
	tab   *tab              // of an operator in the dashboard
	asked outcome           // the approval that it waits for
}

// use calls a tool.
func (j *toolJourney) use(t *testing.T, tool string, arguments map[string]any) outcome {
	t.Helper()
	o, err := j.try(t.Context(), tool, arguments)
	require.NoError(t, err)
	return o
}

func (j *toolJourney) try(ctx context.Context, tool string, arguments map[string]any) (o outcome, err error) {
	raw, err := j.call(ctx, "tools/call", map[string]any{"name": tool, "arguments": arguments})
	if err != nil {
		return o, err
	}
	var result struct {
		Content           []struct{ Text string }
		StructuredContent json.RawMessage
		IsError           bool
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		return o, err
	}
	if len(result.Content) != 2 || result.StructuredContent == nil {
		return o, fmt.Errorf("no result of a tool of the gate's: %s", raw)
	}
	o.text, o.raw, o.isError = result.Content[0].Text, result.StructuredContent, result.IsError
	return o, json.Unmarshal(o.raw, &o)
}

func (j *toolJourney) sql(t *testing.T, sql string, more ...string) outcome {
	t.Helper()
	arguments := calling(sql)
	for i := 0; i < len(more); i += 2 {
		arguments[more[i]] = more[i+1]
	}
	return j.use(t, "sql", arguments)
}

// approve has an operator approve in the dashboard.
func (j *toolJourney) approve(id string) {
	j.tab.open("/approvals/" + id)
	j.tab.do(chromedp.Click(`[data-decision="approve"]`))
	j.tab.until("document.querySelector('dialog[open]')")
	j.tab.do(chromedp.Click(`dialog button[value="yes"]`))
	j.tab.until("!document.querySelector('[data-decision]')")
}

const askedSQL = "DELETE FROM order_items WHERE order_id = 3 RETURNING order_id, line"

// toolItems are the list, in this order.
var toolItems = []struct {
	name string
	play func(t *testing.T, j *toolJourney)
}{
	{"what there is", func(t *testing.T, j *toolJourney) {
		raw, err := j.call(t.Context(), "tools/list", nil)
		require.NoError(t, err)
		var listed struct{ Tools []struct{ Name string } }
		require.NoError(t, json.Unmarshal(raw, &listed), "%s", raw)
		var names []string
		for _, tool := range listed.Tools {
			names = append(names, tool.Name)
		}
		require.ElementsMatch(t, []string{"sql", "approval_wait", "sql_preview", "schema_search", "execution"}, names)
		raw, err = j.call(t.Context(), "resources/read", map[string]any{"uri": "gate://policy"})
		require.NoError(t, err)
		require.Contains(t, string(raw), "filter-required")
	}},
	{"read", func(t *testing.T, j *toolJourney) {
		o := j.sql(t, "SELECT id, status FROM orders ORDER BY id LIMIT 2")
		require.Equal(t, "completed", o.Status, "%s", o.raw)
		require.Equal(t, []map[string]any{{"id": 1.0, "status": "new"}, {"id": 2.0, "status": "new"}}, o.Rows)
	}},
	{"block with its remedy", func(t *testing.T, j *toolJourney) {
		o := j.sql(t, "UPDATE orders SET status = 'paid'")
		require.Equal(t, []any{"blocked", "filter-required", "Add a key, such as WHERE id = 7.", true}, []any{o.Status, o.RuleID, o.Remedy, o.isError}, "%s", o.raw)
		require.Contains(t, o.text, "Add a key, such as WHERE id = 7.")
		require.Equal(t, "completed", j.sql(t, "UPDATE orders SET status = 'paid' WHERE id = 7").Status)
		require.Equal(t, "1", j.value(t, "SELECT count(*) FROM orders WHERE status = 'paid'"))
	}},
	{"pending", func(t *testing.T, j *toolJourney) {
		j.asked = j.sql(t, askedSQL, "reason", "the customer asked")
		require.Equal(t, "pending_approval", j.asked.Status, "%s", j.asked.raw)
		require.Contains(t, j.asked.text, "approval_wait")
		early := j.sql(t, askedSQL, "approval_id", j.asked.ApprovalID)
		require.Equal(t, []string{"pending_approval", j.asked.ApprovalID}, []string{early.Status, early.ApprovalID}, "%s", early.raw)
		require.Equal(t, "1", j.value(t, "SELECT count(*) FROM order_items WHERE order_id = 3"))
	}},
	{"wait", func(t *testing.T, j *toolJourney) {
		o := j.use(t, "approval_wait", map[string]any{"approval_id": j.asked.ApprovalID, "seconds": 1})
		require.Equal(t, "pending_approval", o.Status, "%s", o.raw)
		if j.tells {
			<-j.told
		}
	}},
	{"approved in the dashboard", func(t *testing.T, j *toolJourney) {
		type end struct {
			outcome
			err error
		}
		over := make(chan end, 1)
		go func() {
			var e end
			for e.Status = "pending_approval"; e.Status == "pending_approval" && e.err == nil; { // as it is told
				e.outcome, e.err = j.try(t.Context(), "approval_wait", map[string]any{"approval_id": j.asked.ApprovalID, "seconds": 50})
			}
			over <- e
		}()
		j.approve(j.asked.ApprovalID)
		e := <-over
		require.NoError(t, e.err)
		require.Equal(t, "approved", e.Status, "%s", e.raw)
	}},
	{"rows", func(t *testing.T, j *toolJourney) {
		o := j.sql(t, askedSQL, "approval_id", j.asked.ApprovalID, "reason", "the customer asked")
		require.Equal(t, "completed", o.Status, "%s", o.raw)
		require.Equal(t, []map[string]any{{"order_id": 3.0, "line": 1.0}}, o.Rows)
		require.Equal(t, "0", j.value(t, "SELECT count(*) FROM order_items WHERE order_id = 3"))
		require.Equal(t, "approval_already_used", j.sql(t, askedSQL, "approval_id", j.asked.ApprovalID).ErrorCode)
	}},
	{"unknown outcome", func(t *testing.T, j *toolJourney) {
		write := "INSERT INTO customers VALUES (50, 'Bo', 'bo@example.com')"
		cutBehindCommit(j.proxy)
		o := j.sql(t, write, "idempotency_key", "k-unknown")
		j.proxy.Arm(faultproxy.Fault{})
		require.Equal(t, "unknown", o.Status, "%s", o.raw)
		require.Contains(t, o.text, "Do not send it again")
		require.Equal(t, "unknown", j.use(t, "execution", map[string]any{"execution_id": o.ExecutionID}).Status)
		again := j.sql(t, write, "idempotency_key", "k-unknown")
		require.Equal(t, []any{"unknown", true, o.ExecutionID}, []any{again.Status, again.Replayed, again.ExecutionID}, "%s", again.raw)
		require.Equal(t, http.StatusOK, j.checkOutcome(t, o.ExecutionID).status)
		known := j.use(t, "execution", map[string]any{"execution_id": o.ExecutionID})
		require.Equal(t, "completed", known.Status, "%s", known.raw)
		require.NotContains(t, string(known.raw), "row_count", "nobody counted")
		require.Contains(t, j.sql(t, write, "idempotency_key", "k-unknown").text, "When it was sent, it was not known what became of the statement. It is known by now: it took effect.")
		require.Equal(t, "1", j.value(t, "SELECT count(*) FROM customers WHERE id = 50"))
	}},
	{"expired approval", func(t *testing.T, j *toolJourney) {
		const brief = "DELETE FROM customers WHERE id = 50"
		o := j.sql(t, brief)
		require.Equal(t, "pending_approval", o.Status, "%s", o.raw)
		require.Equal(t, "approval_expired", j.use(t, "approval_wait", map[string]any{"approval_id": o.ApprovalID, "seconds": 60}).ErrorCode)
		late := j.sql(t, brief, "approval_id", o.ApprovalID)
		require.Equal(t, []string{"failed", "approval_expired"}, []string{late.Status, late.ErrorCode}, "%s", late.raw)
		require.Equal(t, "1", j.value(t, "SELECT count(*) FROM customers WHERE id = 50"))
	}},
	{"result too large", func(t *testing.T, j *toolJourney) {
		cut := j.sql(t, "SELECT n FROM generate_series(1, 1000) AS n")
		require.Equal(t, []any{"completed", true, 1000, 500}, []any{cut.Status, cut.Truncated, cut.RowCount, len(cut.Rows)}, "%s", cut.text)
		refused := j.sql(t, "SELECT n FROM generate_series(1, 3000) AS n")
		require.Equal(t, []string{"failed", "result_too_large"}, []string{refused.Status, refused.ErrorCode}, "%s", refused.text)
	}},
	{"server restarted in the middle", func(t *testing.T, j *toolJourney) {
		const write = "DELETE FROM order_items WHERE order_id = 9"
		o := j.sql(t, write)
		require.Equal(t, "pending_approval", o.Status, "%s", o.raw)
		j.end(t)
		_, err := j.try(t.Context(), "sql", calling("SELECT 1 AS one"))
		require.Error(t, err, "nobody is there")
		require.Regexp(t, "refused|fetch failed", err.Error(), "in the words of the client's library, or of gate mcp")
		j.start()
		require.Equal(t, "pending_approval", j.sql(t, write, "approval_id", o.ApprovalID).Status, "nothing of the conversation was in the gate's memory")
		require.Equal(t, http.StatusOK, j.resolve(t, o.ApprovalID, "approve").status)
		require.Equal(t, "approved", j.use(t, "approval_wait", map[string]any{"approval_id": o.ApprovalID, "seconds": 60}).Status)
		require.Equal(t, "completed", j.sql(t, write, "approval_id", o.ApprovalID).Status)
		require.Equal(t, "0", j.value(t, "SELECT count(*) FROM order_items WHERE order_id = 9"))
		require.True(t, j.sql(t, "INSERT INTO customers VALUES (50, 'Bo', 'bo@example.com')", "idempotency_key", "k-unknown").Replayed)
	}},
	{"revoked token", func(t *testing.T, j *toolJourney) {
		token := j.v1(t, http.MethodGet, "/agents/"+j.agent+"/tokens", "").json(t)["items"].([]any)[0].(map[string]any)["token_id"].(string)
		require.Equal(t, http.StatusOK, j.v1(t, http.MethodDelete, "/agents/"+j.agent+"/tokens/"+token, "").status)
		_, err := j.try(t.Context(), "sql", calling("UPDATE orders SET status = 'late' WHERE id = 1"))
		require.Error(t, err)
		require.Regexp(t, "token_revoked|Unauthorized", err.Error())
		require.Equal(t, "0", j.value(t, "SELECT count(*) FROM orders WHERE status = 'late'"))
	}},
}

// Those of others take part where `make mcp` has installed them; it is seen in any case that
// they would be of exact versions.
func TestEveryClientOfTheToolsGoesThroughOneList(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(othersSources, "package.json"))
	require.NoError(t, err)
	var page struct{ Dependencies map[string]string }
	require.NoError(t, json.Unmarshal(text, &page))
	require.Len(t, page.Dependencies, 2)
	for name, version := range page.Dependencies {
		require.Regexp(t, `^\d+\.\d+\.\d+$`, version, name)
	}
	b, err := browser.Start(context.Background(), os.Stderr)
	require.NoError(t, err)
	t.Cleanup(b.Close)
	installed := os.Getenv(othersClients)
	for _, c := range toolClients() {
		if c.others && installed == "" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			own, err := b.Apart()
			require.NoError(t, err)
			t.Cleanup(own.Close)
			j := startToolJourney(t, own)
			var token string
			j.agent, token = j.register(t, "invoice-bot")
			j.told, j.tells = make(chan any, 1000), c.tells
			j.call = c.connect(t, j.agentWorld, token, installed, j.told)
			for _, item := range toolItems {
				if !t.Run(item.name, func(t *testing.T) { item.play(t, j) }) {
					return
				}
			}
			j.end(t)
			require.Equal(t, 2, j.reasonsGiven(t)["the customer asked"])
		})
	}
}

// startToolJourney is a gate at an address that it keeps, with its tools, a dashboard in a
// browser, and a database whose connections can be broken.
func startToolJourney(t *testing.T, b *browser.Browser) *toolJourney {
	d := newGateDir(t, []byte(listPolicy))
	d.execute(t, shopTables)
	j := &toolJourney{agentWorld: &agentWorld{key: agentctl.NewSecret(agentctl.KeyPrefix)}, proxy: faultproxy.Start(t, d.database)}
	settings := slices.Concat(toolsOn, []string{"GATE_PROJECT_KEYS=shop/ops=" + j.key, "GATE_DATABASE_URL=" + j.proxy.URL(), "GATE_MAX_RESULT_ROWS=2000", "GATE_OUTCOME_CHECK_INTERVAL_SECONDS=0"})
	j.testGate = startGate(t, d, append(slices.Clone(settings), "GATE_HTTP_LISTEN_ADDR=127.0.0.4:0")...) // where nobody takes its port while it is down
	j.start = func() {
		j.testGate = startGate(t, d, append(settings, "GATE_HTTP_LISTEN_ADDR="+strings.TrimPrefix(j.base, "http://"))...)
	}
	j.tab = openTab(t, b, startTestPlane(t, j.base))
	j.tab.login()
	return j
}

// The TypeScript client comes with a JWT of an issuer in the place of a token. `make mcp` installs it.
func TestTheTypeScriptClientComesWithAJWT(t *testing.T) {
	t.Parallel()
	installed := os.Getenv(othersClients)
	for _, way := range []string{"http", "stdio"} {
		i := issuer.New(t)
		w := startDoor(t, trusting(t, i)...)
		id, _ := w.register(t, "invoice-bot")
		w.bind(t, id, "client-7")
		if installed == "" {
			continue
		}
		call := typeScriptCaller(t, w, i.Token("client-7"), installed, way, make(chan any, 100))
		result, err := call(t.Context(), "tools/call", map[string]any{"name": "sql", "arguments": map[string]any{"sql": "SELECT 1 AS one"}})
		require.NoError(t, err)
		require.Contains(t, string(result), `"one":1`)
	}
}
