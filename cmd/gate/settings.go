package main

// settings is every GATE_* setting of the service, read from the environment
// once, at start. The tags are the documentation: `gate config` prints them,
// and docs/OPERATIONS.md is compared with them by a test.
//
//   - env, envDefault: the variable and its default
//   - min, max: the range of a number, both ends included
//   - oneof: the closed set of a word
//   - empty: "refused" is a setting without a default whose absence protects less;
//     given and empty it stops the start, as each setting with a default does
//   - secret: the value is never printed
//   - group: the heading of this setting and of those below it, in gate config
//   - doc: what it does, with its unit
type settings struct {
	HTTPListenAddr   string `env:"GATE_HTTP_LISTEN_ADDR" group:"Service" envDefault:"127.0.0.1:6543" doc:"address of the HTTP API"`
	AllowedHosts     string `env:"GATE_ALLOWED_HOSTS" doc:"names, separated by commas, that the HTTP API is called by besides its addresses and localhost: gate.internal, or gate.internal:6543 for this port alone"`
	HTTPMaxConns     int    `env:"GATE_HTTP_MAX_CONNECTIONS" envDefault:"4096" min:"1" max:"1000000" doc:"connections of the HTTP API at most"`
	HTTPMaxPerIP     int    `env:"GATE_HTTP_MAX_CONNECTIONS_PER_IP" envDefault:"1024" min:"1" max:"1000000" doc:"connections of it at most from one address that is not in GATE_TRUSTED_PROXIES, or from one IPv6 network of 64 bits"`
	StreamsPerClient int    `env:"GATE_MAX_STREAMS_PER_CLIENT" envDefault:"16" min:"1" max:"64" doc:"streams of GET /audit/stream at once of one client, and of GET /v1/events of one project key or agent; operators have slots of their own"`
	Mode             string `env:"GATE_MODE" envDefault:"enforce" oneof:"shadow,approval_first,enforce,emergency_bypass" doc:"operating mode, read once at start"`
	Profile          string `env:"GATE_PROFILE" envDefault:"development" oneof:"development,production" doc:"production refuses unsafe settings"`
	LogFormat        string `env:"GATE_LOG_FORMAT" envDefault:"auto" oneof:"auto,json,text" doc:"lines on standard error: auto is text for people on a terminal, and json elsewhere"`
	BypassReason     string `env:"GATE_EMERGENCY_BYPASS_REASON" doc:"why the gate is bypassed; required in mode emergency_bypass"`
	BypassUntil      string `env:"GATE_EMERGENCY_BYPASS_UNTIL" doc:"end of the bypass, RFC 3339, at most 24 hours ahead"`

	OperatorToken  string `env:"GATE_OPERATOR_TOKEN" group:"Operators" secret:"true" doc:"operator token, label operator; without one the operator endpoints refuse everybody"`
	OperatorTokens string `env:"GATE_OPERATOR_TOKENS" secret:"true" doc:"more operator tokens: label=token, separated by commas"`
	TrustedProxies string `env:"GATE_TRUSTED_PROXIES" doc:"CIDRs, separated by commas, of proxies whose X-Forwarded-For is believed"`

	DatabaseURL       string `env:"GATE_DATABASE_URL" group:"Database" secret:"true" doc:"PostgreSQL URL of the role that writes; sslmode, sslrootcert and connect_timeout in it mean what they mean to libpq, and are refused where they are weaker than the settings"`
	DatabaseReadURL   string `env:"GATE_DATABASE_READ_URL" empty:"refused" secret:"true" doc:"role for safe reads; default GATE_DATABASE_URL"`
	DatabaseDDLURL    string `env:"GATE_DATABASE_DDL_URL" empty:"refused" secret:"true" doc:"role for ddl, dcl, maintenance and REFRESH; default GATE_DATABASE_URL"`
	DatabaseOwnerURL  string `env:"GATE_DATABASE_OWNER_URL" empty:"refused" secret:"true" doc:"URL of the database's owner or of a superuser, by which gate quickstart makes the roles; the gate itself does not use it"`
	DatabaseTimeline  string `env:"GATE_DATABASE_TIMELINE" empty:"refused" doc:"timeline that the database was put back to on purpose, eight hex digits; it counts once, at the first start that has it"`
	SearchPath        string `env:"GATE_SEARCH_PATH" envDefault:"public" doc:"the one schema that unqualified names mean"`
	KeyColumns        string `env:"GATE_KEY_COLUMNS" doc:"key columns besides id, separated by commas, for the fact key_equality"`
	DBPoolMax         int    `env:"GATE_DB_POOL_MAX" envDefault:"16" min:"1" max:"1000" doc:"connections at most, for reader and writer each"`
	DBPoolReserved    int    `env:"GATE_DB_POOL_RESERVED" envDefault:"2" min:"0" max:"1000" doc:"of the connections of each pool, and of the transaction blocks of the wire listener, those that one client alone does not get; an eighth of them at most, 0 = one client may take all"`
	DBConnLifetime    int    `env:"GATE_DB_CONN_MAX_LIFETIME_SECONDS" envDefault:"1800" min:"1" max:"86400" doc:"seconds until a connection is closed"`
	DBConnIdle        int    `env:"GATE_DB_CONN_IDLE_SECONDS" envDefault:"300" min:"1" max:"86400" doc:"seconds until an idle connection is closed"`
	DBConnectTimeout  int    `env:"GATE_DB_CONNECT_TIMEOUT_MS" envDefault:"5000" min:"1" max:"600000" doc:"milliseconds to dial and log in"`
	DBAcquireTimeout  int    `env:"GATE_DB_ACQUIRE_TIMEOUT_MS" envDefault:"2000" min:"1" max:"600000" doc:"milliseconds to wait for a free connection"`
	DBQueryTimeout    int    `env:"GATE_DB_QUERY_TIMEOUT_MS" envDefault:"5000" min:"1" max:"3600000" doc:"milliseconds for a statement; set on the server too"`
	DBBulkTimeout     int    `env:"GATE_DB_BULK_QUERY_TIMEOUT_MS" envDefault:"300000" min:"1" max:"86400000" doc:"milliseconds for a statement under execution_profile bulk"`
	DBLockTimeout     int    `env:"GATE_DB_LOCK_TIMEOUT_MS" envDefault:"3000" min:"0" max:"3600000" doc:"milliseconds to wait for a lock; 0 = no limit"`
	DBIdleInTxTimeout int    `env:"GATE_DB_IDLE_IN_TX_TIMEOUT_MS" envDefault:"10000" min:"1000" max:"3600000" doc:"milliseconds the server lets a transaction idle"`
	DBCommitTimeout   int    `env:"GATE_DB_COMMIT_TIMEOUT_MS" envDefault:"10000" min:"1" max:"3600000" doc:"milliseconds to wait for the answer to COMMIT; nothing is cancelled there"`
	DBErrorDetail     bool   `env:"GATE_DB_ERROR_DETAIL" envDefault:"false" doc:"hand on DETAIL and CONTEXT of database errors, which carry row values"`
	MaxResultRows     int    `env:"GATE_MAX_RESULT_ROWS" envDefault:"10000" min:"1" max:"10000000" doc:"rows of a result at most"`
	MaxResultBytes    int64  `env:"GATE_MAX_RESULT_BYTES" envDefault:"16777216" min:"1024" max:"1073741824" doc:"bytes of a result at most"`

	UpstreamTLSMode       string `env:"GATE_TLS_UPSTREAM_MODE" group:"TLS to the database" envDefault:"verify-full" oneof:"verify-full,disable" doc:"TLS to PostgreSQL; disable is for development"`
	UpstreamTLSCA         string `env:"GATE_TLS_UPSTREAM_CA_BUNDLE_PATH" empty:"refused" doc:"PEM file of the CAs that sign PostgreSQL's certificate"`
	UpstreamTLSCert       string `env:"GATE_TLS_UPSTREAM_CERT_PATH" empty:"refused" doc:"PEM file of the gate's client certificate for PostgreSQL"`
	UpstreamTLSKey        string `env:"GATE_TLS_UPSTREAM_KEY_PATH" empty:"refused" doc:"PEM file of its key"`
	UpstreamTLSServerName string `env:"GATE_TLS_UPSTREAM_SERVER_NAME" empty:"refused" doc:"name to verify when it is not the URL's host"`

	MaxBodyBytes int64 `env:"GATE_MAX_BODY_BYTES" group:"Limits" envDefault:"1048576" min:"1024" max:"16777216" doc:"bytes of a request body at most"`
	MaxSQLBytes  int   `env:"GATE_MAX_SQL_BYTES" envDefault:"262144" min:"1" max:"524288" doc:"bytes of SQL text at most"`
	RatePerMin   int   `env:"GATE_RATE_LIMIT_REQUESTS_PER_MINUTE" envDefault:"120" min:"1" max:"10000000" doc:"statements a client may send per minute"`
	RateBurst    int   `env:"GATE_RATE_LIMIT_BURST" envDefault:"30" min:"1" max:"10000000" doc:"statements a client may send at once"`
	ApprovalTTL  int   `env:"GATE_APPROVAL_DEFAULT_TTL_SECONDS" envDefault:"300" min:"1" max:"86400" doc:"seconds an approval lives, from its creation"`

	ParserMode     string `env:"GATE_PARSER_MODE" group:"Parser" envDefault:"auto" oneof:"auto,child" doc:"child parses every text in the parser process"`
	ParserChildren int    `env:"GATE_PARSER_CHILDREN" envDefault:"1" min:"1" max:"8" doc:"parser processes; each is started by the first text that needs one"`

	PolicyDir      string `env:"GATE_POLICY_DIR" group:"Policy folder" envDefault:"./policies" doc:"folder of policy versions"`
	PolicyManifest string `env:"GATE_POLICY_MANIFEST" envDefault:"manifest.json" doc:"manifest file, relative to the policy folder"`

	AuditWALPath       string `env:"GATE_AUDIT_WAL_PATH" group:"Log" envDefault:"./audit.wal" doc:"canonical append-only log"`
	AuditLogPath       string `env:"GATE_AUDIT_LOG_PATH" envDefault:"./audit.log" doc:"JSONL projection of the log; not canonical"`
	AuditIndexPath     string `env:"GATE_AUDIT_INDEX_PATH" doc:"sparse index; default audit_index_v1.json beside the log"`
	ApprovalDBPath     string `env:"GATE_APPROVAL_DB_PATH" envDefault:"./approvals.db" doc:"store of all projections"`
	AuditFsync         string `env:"GATE_AUDIT_FSYNC" envDefault:"required" oneof:"required,off" doc:"off is for the lab only: acknowledged events can be lost"`
	AuditOnTornTail    string `env:"GATE_AUDIT_ON_TORN_TAIL" envDefault:"record" oneof:"record,refuse" doc:"what a start does with an unfinished last batch"`
	AuditVerifyOnStart string `env:"GATE_AUDIT_VERIFY_ON_START" envDefault:"active" oneof:"active,full" doc:"full waits for the whole chain before serving"`
	AuditPreallocate   int64  `env:"GATE_AUDIT_PREALLOCATE_BYTES" envDefault:"16777216" min:"0" max:"1073741824" doc:"bytes of zeros written ahead, with which the log outlasts a full disk; 0 = off, and a full disk ends the gate"`
	AuditNetworkFS     bool   `env:"GATE_AUDIT_ALLOW_NETWORK_FS" envDefault:"false" doc:"allow the log on NFS or SMB"`
	AuditOrigin        string `env:"GATE_AUDIT_ORIGIN" doc:"name of the log, read at creation; default gate/<log_id>"`
	AuditSQLText       string `env:"GATE_AUDIT_SQL_TEXT" envDefault:"normalized" oneof:"normalized,full,none" doc:"SQL text in the log; normalized replaces constants"`

	AuditSegmentBytes     int64  `env:"GATE_AUDIT_SEGMENT_BYTES" group:"Segments and evidence" envDefault:"1073741824" min:"65536" max:"1099511627776" doc:"bytes at which a segment of the log is sealed and the next one begun"`
	AuditSegmentHours     int    `env:"GATE_AUDIT_SEGMENT_HOURS" envDefault:"24" min:"0" max:"8760" doc:"age at which the same happens, with the next event; 0 = off"`
	AuditVerifyDirs       string `env:"GATE_AUDIT_VERIFY_DIRS" doc:"more folders whose files may be verified"`
	CheckpointEveryEvents int    `env:"GATE_AUDIT_CHECKPOINT_EVERY_EVENTS" envDefault:"10000" min:"1" max:"10000000" doc:"events after which a checkpoint is signed, where signing is enabled"`
	CheckpointEverySecs   int    `env:"GATE_AUDIT_CHECKPOINT_EVERY_SECONDS" envDefault:"60" min:"1" max:"86400" doc:"seconds after which one is signed when there are new events"`
	WitnessURLs           string `env:"GATE_WITNESS_URLS" empty:"refused" doc:"witnesses that checkpoints are offered to (C2SP tlog-witness), separated by commas"`
	WitnessKeys           string `env:"GATE_WITNESS_KEYS" empty:"refused" doc:"vkeys of their cosignatures, separated by commas"`
	SigningEnabled        bool   `env:"GATE_EVIDENCE_SIGNING_ENABLED" envDefault:"false" doc:"sign receipts, checkpoints and bundles; production demands it"`
	SigningPrivateKey     string `env:"GATE_EVIDENCE_SIGNING_PRIVATE_KEY_PATH" doc:"PKCS#8 PEM file of the signing key; nobody but its owner may use it"`
	SigningPublicKey      string `env:"GATE_EVIDENCE_SIGNING_PUBLIC_KEY_PATH" doc:"PEM file of its public key"`
	EvidenceMaxEvents     int    `env:"GATE_EVIDENCE_MAX_EVENTS" envDefault:"100000" min:"1" max:"100000000" doc:"events of a bundle at most"`
	EvidenceMaxBytes      int64  `env:"GATE_EVIDENCE_MAX_BYTES" envDefault:"268435456" min:"1024" max:"1099511627776" doc:"bytes of a bundle at most"`

	LogFenceURL     string `env:"GATE_LOG_FENCE_URL" group:"Fence of the log" empty:"refused" secret:"true" doc:"PostgreSQL URL of the database in whose table the copy of the log that may be written is named, so that gates on two copies can't both write; sslmode, sslrootcert and connect_timeout in it are as in GATE_DATABASE_URL. Without it there is no fence"`
	LogFenceTable   string `env:"GATE_LOG_FENCE_TABLE" envDefault:"gate.log_fence" doc:"schema.table of it; gate log fence ddl prints what makes it"`
	LogFenceGuarded bool   `env:"GATE_LOG_FENCE_IN_GUARDED_DATABASE" envDefault:"false" doc:"the fence's database is the guarded one, and may be: it is down with it then, and its superusers write both"`

	TLSCert              string `env:"GATE_TLS_CERT_PATH" group:"TLS of the listeners" empty:"refused" doc:"PEM file of the server certificate and its chain; with it the API is HTTPS"`
	TLSKey               string `env:"GATE_TLS_KEY_PATH" empty:"refused" doc:"PEM file of its key"`
	TLSClientCA          string `env:"GATE_TLS_CLIENT_CA_BUNDLE_PATH" empty:"refused" doc:"PEM file of the CAs that sign client certificates"`
	TLSRequireClientCert bool   `env:"GATE_TLS_REQUIRE_CLIENT_CERT" envDefault:"false" doc:"refuse clients without a certificate; true in production"`
	TLSMinVersion        string `env:"GATE_TLS_MIN_VERSION" envDefault:"1.2" oneof:"1.2,1.3" doc:"lowest TLS version that clients may speak"`
	EnforceHBA           string `env:"GATE_ENFORCE_PG_HBA_BASELINE" group:"Checks, outcomes and plans" envDefault:"false" oneof:"false,report,true" doc:"hold PostgreSQL's access rules against what the gate expects: report tells, true refuses statements; true in production"`
	OutcomeCheckSecs     int    `env:"GATE_OUTCOME_CHECK_INTERVAL_SECONDS" envDefault:"30" min:"0" max:"86400" doc:"seconds between checks of unknown outcomes; 0 = off"`
	OutcomeMarkerTable   string `env:"GATE_OUTCOME_MARKER_TABLE" doc:"schema.table in which each write leaves a row, so that its outcome is certain; empty = off"`
	OutcomeMarkerKeep    int    `env:"GATE_OUTCOME_MARKER_KEEP_DAYS" envDefault:"30" min:"1" max:"3650" doc:"days for which the owner of that table keeps its rows"`
	MaxSessions          int    `env:"GATE_MAX_SESSIONS" envDefault:"1000" min:"1" max:"1000000" doc:"prepared-statement sessions at most; each has up to 100 statements and ends after 15 idle minutes"`
	PlanEstimates        bool   `env:"GATE_PLAN_ESTIMATES" envDefault:"false" doc:"ask PostgreSQL for the plan of provably plain statements, in previews and for approvals, and for approvals what else a write reaches"`
	DryRunTimeout        int    `env:"GATE_DRY_RUN_TIMEOUT_MS" envDefault:"1000" min:"1" max:"60000" doc:"milliseconds that the database may take for each step of a dry run, which holds its locks so long"`
	DryRunLockTimeout    int    `env:"GATE_DRY_RUN_LOCK_TIMEOUT_MS" envDefault:"100" min:"1" max:"60000" doc:"milliseconds that a dry run waits for a lock"`
	CatalogRefreshSecs   int    `env:"GATE_CATALOG_REFRESH_SECONDS" envDefault:"0" min:"0" max:"86400" doc:"how old, in seconds, what the gate knows of the database's catalogue may be, with which statements are judged by what stands behind their names; 0 = by their text alone"`
	ReplayTimeout        int    `env:"GATE_POLICY_REPLAY_TIMEOUT_MS" envDefault:"30000" min:"1" max:"3600000" doc:"milliseconds for a replay"`
	RequireImpact        bool   `env:"GATE_POLICY_REQUIRE_IMPACT" envDefault:"false" doc:"activation must name the impact it was reviewed with"`

	ProjectKeys      string `env:"GATE_PROJECT_KEYS" group:"Agents and dashboard" secret:"true" doc:"project keys of /v1: [project/label=]value[;scope+scope], separated by commas; gate keys create makes one"`
	ClientURL        string `env:"GATE_URL" empty:"refused" doc:"URL of the running gate that commands ask which have no --url, such as http://127.0.0.1:6543; the gate itself does not use it"`
	ProjectKey       string `env:"GATE_PROJECT_KEY" secret:"true" doc:"project key that gate agents shows to a running gate; the gate itself does not use it"`
	MCPEnabled       bool   `env:"GATE_MCP_ENABLED" envDefault:"false" doc:"serve POST /mcp, the tools for agents that speak the Model Context Protocol"`
	MCPClaims        string `env:"GATE_MCP_CLAIMS" empty:"refused" doc:"claims of statements that come by it, name=value separated by commas, that an agent's record does not say; those not given are app=mcp, tenant=default, role=agent, host=mcp and env=prod"`
	MCPPublicURL     string `env:"GATE_MCP_PUBLIC_URL" empty:"refused" doc:"URL by which agents call POST /mcp, such as https://gate.example.com/mcp, as it is told to those who ask where to get a token; default by the Host of their requests"`
	PlaneURL         string `env:"GATE_CONTROL_PLANE_URL" empty:"refused" doc:"origin of the dashboard, such as https://gate.example.com, by which agents are told where a person decides about their approvals"`
	AgentOIDCIssuer  string `env:"GATE_AGENT_OIDC_ISSUER" empty:"refused" doc:"URL of the OpenID Connect issuer whose JWTs agents may show, exactly as iss has it; gate agents bind-subject says whose they are"`
	AgentOIDCAud     string `env:"GATE_AGENT_OIDC_AUDIENCE" empty:"refused" doc:"what aud of these JWTs has to hold, exactly; required with GATE_AGENT_OIDC_ISSUER"`
	AgentOIDCCA      string `env:"GATE_AGENT_OIDC_CA_BUNDLE_PATH" empty:"refused" doc:"PEM file of the CAs that sign the issuer's certificate; default those of the system"`
	AgentToken       string `env:"GATE_AGENT_TOKEN" empty:"refused" secret:"true" doc:"agent's token, or JWT, that gate mcp shows to a running gate; the gate itself does not use it"`
	EgressAllowCIDRs string `env:"GATE_EGRESS_ALLOW_CIDRS" doc:"CIDRs, separated by commas, of networks that verification of tools may reach although they are not public, and with plain http; and keys of GATE_AGENT_OIDC_ISSUER that lie on another host"`
	EgressAllowPorts string `env:"GATE_EGRESS_ALLOW_PORTS" doc:"ports, separated by commas, that verification of tools may reach besides 443"`
	BackendURL       string `env:"GATE_BACKEND_URL" doc:"address of the gate; read by gate control-plane alone"`

	WireEnabled     bool   `env:"GATE_PGWIRE_ENABLED" group:"Wire listener" envDefault:"false" doc:"experimental listener that speaks PostgreSQL's protocol; for the lab alone"`
	WireListenAddr  string `env:"GATE_PGWIRE_LISTEN_ADDR" envDefault:"0.0.0.0:6544" doc:"address of that listener; where nobody logs in it must be a loopback address"`
	WireLabMode     bool   `env:"GATE_PGWIRE_LAB_MODE" envDefault:"false" doc:"must be true beside GATE_PGWIRE_ENABLED: whoever sets it knows that the listener is an experiment"`
	WireAuth        string `env:"GATE_PGWIRE_AUTH" oneof:",scram,cert,trust" doc:"how wire clients log in: scram (a password), cert (the common name of their certificate is the user) or trust (loopback addresses alone); default scram, but trust on a loopback address without a users file"`
	WireUsersFile   string `env:"GATE_PGWIRE_USERS_FILE" empty:"refused" doc:"file of users and their SCRAM verifiers, mode 0600, read anew when it changes; gate pgwire hash-password makes its lines; where scram finds none named, pgwire_users beside the log is made, with one user and a password that is told once"`
	WireTLS         string `env:"GATE_PGWIRE_TLS" oneof:",off,prefer,require" doc:"TLS of wire clients: off, prefer or require; default require where there is a certificate, else off"`
	WireDefaultEnv  string `env:"GATE_PGWIRE_DEFAULT_ENV" envDefault:"prod" oneof:"shadow,staging,prod" doc:"claim env of wire clients that give no gate.env"`
	WireMaxBatch    int    `env:"GATE_PGWIRE_MAX_BATCH_ITEMS" envDefault:"1000" min:"1" max:"100000" doc:"extended messages between two Syncs at most"`
	WireMaxMessage  int    `env:"GATE_PGWIRE_MAX_MESSAGE_BYTES" envDefault:"1048576" min:"1024" max:"16777216" doc:"bytes of one message at most"`
	WireMaxConns    int    `env:"GATE_PGWIRE_MAX_CONNECTIONS" envDefault:"100" min:"1" max:"100000" doc:"wire connections at most"`
	WireMaxPerIP    int    `env:"GATE_PGWIRE_MAX_CONNECTIONS_PER_IP" envDefault:"50" min:"1" max:"100000" doc:"wire connections at most from one address"`
	WireMaxUnauth   int    `env:"GATE_PGWIRE_MAX_UNAUTHENTICATED" envDefault:"32" min:"1" max:"100000" doc:"wire connections at most that have not logged in; of several addresses each has a share, and a CancelRequest needs none of these"`
	WireAuthTimeout int    `env:"GATE_PGWIRE_AUTH_TIMEOUT_MS" envDefault:"10000" min:"1" max:"600000" doc:"milliseconds for all of start-up and login"`
	WireIdle        int    `env:"GATE_PGWIRE_IDLE_TIMEOUT_SECONDS" envDefault:"600" min:"1" max:"86400" doc:"seconds that a wire client may be silent between commands"`
	WireWrite       int    `env:"GATE_PGWIRE_WRITE_TIMEOUT_MS" envDefault:"30000" min:"1" max:"600000" doc:"milliseconds for a wire client that does not read; then the connection is closed"`
	WireTxMax       int    `env:"GATE_PGWIRE_TX_MAX_MS" envDefault:"30000" min:"0" max:"3600000" doc:"milliseconds of a transaction block at most; 0 = BEGIN is refused"`
	WireTxIdle      int    `env:"GATE_PGWIRE_TX_IDLE_TIMEOUT_MS" envDefault:"10000" min:"1" max:"3600000" doc:"milliseconds that a client may be silent in a transaction block"`
	WireMaxTx       int    `env:"GATE_PGWIRE_MAX_TRANSACTIONS" envDefault:"8" min:"1" max:"1000" doc:"transaction blocks at once; each holds a database connection"`
}
