// Command client does with a generated client what a new program would: it
// registers an agent, applies a policy to it, sends telemetry with the agent's
// own token, and prints what the gate says was used.
//
// Its package client is generated from the description that a running
// gate serves. GATE and KEY name the gate and a project key.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"client/client"
)

func main() {
	if err := run(context.Background(), os.Getenv("GATE"), os.Getenv("KEY")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func with(gate, header, value string) (*client.ClientWithResponses, error) {
	return client.NewClientWithResponses(gate, client.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		r.Header.Set(header, value)
		return nil
	}))
}

func run(ctx context.Context, gate, key string) error {
	project, err := with(gate, "x-api-key", key)
	if err != nil {
		return err
	}
	once := "generated-client"
	agent, err := project.RegisterAgentWithResponse(ctx, &client.RegisterAgentParams{IdempotencyKey: &once}, client.RegisterAgent{Name: "generated", Type: "worker"})
	if err != nil {
		return err
	}
	if agent.JSON201 == nil {
		return fmt.Errorf("register: %s %s", agent.Status(), agent.Body)
	}
	if err := applyPolicy(ctx, project, agent.JSON201.Id); err != nil {
		return err
	}
	own, err := with(gate, "Authorization", "Bearer "+*agent.JSON201.Credentials.Token)
	if err != nil {
		return err
	}
	if err := sendTelemetry(ctx, own); err != nil {
		return err
	}
	group := client.AgentUsageParamsGroupBy("agent_id")
	usage, err := project.AgentUsageWithResponse(ctx, &client.AgentUsageParams{GroupBy: &group})
	if err != nil {
		return err
	}
	if usage.JSON200 == nil {
		return fmt.Errorf("usage: %s %s", usage.Status(), usage.Body)
	}
	for _, item := range usage.JSON200.Items {
		fmt.Printf("%s telemetry_events %d input_tokens %d cost_usd %s\n", item.Group["agent_id"], item.TelemetryEvents, item.InputTokens, item.CostUsd)
	}
	return nil
}

func applyPolicy(ctx context.Context, project *client.ClientWithResponses, agentID string) error {
	policy, err := project.CreateAgentPolicyWithResponse(ctx, nil, client.AgentPolicyInput{Name: "no-deletes",
		Rules: []client.AgentRule{{Action: "block", Condition: `sql.query_type == "DELETE"`}}})
	if err != nil {
		return err
	}
	if policy.JSON201 == nil {
		return fmt.Errorf("policy: %s %s", policy.Status(), policy.Body)
	}
	priority := "high"
	applied, err := project.ApplyAgentPolicyWithResponse(ctx, policy.JSON201.Id, nil, client.ApplyPolicy{AgentId: agentID, Priority: &priority})
	if err != nil {
		return err
	}
	if applied.JSON201 == nil {
		return fmt.Errorf("apply: %s %s", applied.Status(), applied.Body)
	}
	fmt.Println(applied.JSON201.AgentId, applied.JSON201.Status)
	return nil
}

func sendTelemetry(ctx context.Context, own *client.ClientWithResponses) error {
	call := client.TelemetryEvent{Type: "llm_call"}
	var batch client.TelemetryBatch
	for range 3 {
		batch.Events = append(batch.Events, call)
	}
	sent, err := own.SendTelemetryWithResponse(ctx, nil, batch)
	if err != nil {
		return err
	}
	if sent.JSON200 == nil || sent.JSON200.Accepted != len(batch.Events) {
		return fmt.Errorf("telemetry: %s %s", sent.Status(), sent.Body)
	}
	return nil
}
