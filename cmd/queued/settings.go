package main

import (
	"net/url"
	"time"
)

// settings are the settings of serve. Each field is a flag, named after the field, and an environment variable, named after the flag
// in capitals with QUEUED_ before it. settingHelp has its help. The tag type is its kind (see kinds), which the tags min, max, off
// and choices narrow; the tag unset is the note on a default that is none of its values: the field is then zero. Off is negative.
type settings struct {
	databaseSettings `embed:"" group:"Database:"`
	serverSettings   `embed:"" group:"Database:"`
	secretSettings   `embed:"" group:"Secrets:"`
	httpSettings     `embed:"" group:"HTTP:"`
	queueSettings    `embed:"" group:"Queue:"`
	pushSettings     `embed:"" group:"Push:"`
	limitSettings    `embed:"" group:"Limits:"`
	logSettings      `embed:"" group:"Log:"`
}

// databaseSettings say where the events are. Here and below, a field of the name …File names a file that holds the field before it, into
// which reader.finish reads it.
type databaseSettings struct {
	DatabaseURL     string `type:"database-url" unset:"none: a private PostgreSQL"`
	DatabaseURLFile string `type:"path"`
	DataDir         string `type:"path" placeholder:"DIR" unset:"/var/lib/queued for root, else ~/.local/share/queued"`
}

// serverSettings say how serve uses the database.
type serverSettings struct {
	ListenURL     string        `type:"database-url" unset:"none: the database URL"`
	ListenURLFile string        `type:"path"`
	StartTimeout  time.Duration `type:"duration" default:"5m"`
	RequireSync   bool          `type:"switch"`
	NoMigrate     bool          `type:"switch"`
	Adopt         string        `type:"choice" choices:"ask,always" placeholder:"WHEN" default:"ask"`
	Background    string        `type:"choice" choices:"on,off" placeholder:"STATE" default:"on"`
	Cell          int           `type:"count" min:"0" max:"255" default:"0"`

	migrateSettings `embed:""`
}

// migrateSettings say how serve and migrate migrate.
type migrateSettings struct {
	ForceMigrate bool `type:"switch"`
}

// secretSettings are the keys under which secrets of others are sealed in the database: those of senders of webhooks, and of endpoints. The first
// key seals, all of them open.
type secretSettings struct {
	SecretKey     []string `type:"secret-keys" unset:"none; with the private PostgreSQL, secret.key in its data directory"`
	SecretKeyFile string   `type:"path"`
}

// listenSettings are the settings that serve and healthcheck share.
type listenSettings struct {
	Listen  string `type:"listen" default:"127.0.0.1:8080"`
	TLSCert string `type:"path"`
}

// frontSettings are about an HTTP server, of serve or of a gateway.
type frontSettings struct {
	listenSettings  `embed:""`
	Hosts           []string      `type:"hosts" unset:"none: on loopback only localhost and addresses of it, elsewhere any"`
	TLSKey          string        `type:"path"`
	TLSClientCA     string        `type:"path"`
	DrainDelay      time.Duration `type:"duration" min:"0s" default:"0s"`
	ShutdownTimeout time.Duration `type:"duration" default:"30s"`
	AccessLog       string        `type:"choice" choices:"slow,all" placeholder:"WHICH" default:"slow"`
}

// httpSettings are about the HTTP server of serve.
type httpSettings struct {
	frontSettings  `embed:""`
	APIKey         string        `type:"api-key"`
	APIKeyFile     string        `type:"path"`
	UIPayloads     string        `type:"choice" choices:"shown,hidden" placeholder:"HOW" default:"shown"`
	AuditRetention time.Duration `type:"duration" off:"" default:"2160h"`
}

// gatewaySettings are the settings of gateway.
type gatewaySettings struct {
	frontSettings   `embed:"" group:"HTTP:"`
	cellsSettings   `embed:"" group:"Cells:"`
	passingSettings `embed:"" group:"Limits:"`
	logSettings     `embed:"" group:"Log:"`
}

// cellsSettings say which cells a gateway is in front of, and how it reaches them. All but the first are those of commands that talk to a server.
type cellsSettings struct {
	Cells   map[int]*url.URL `type:"cells"`
	Key     string           `type:"secret"`
	KeyFile string           `type:"path"`

	CellKeys     map[int]string `type:"cell-keys"`
	CellKeysFile string         `type:"path"`

	CACert    string `name:"cacert" type:"path"`
	Cert      string `type:"path"`
	ClientKey string `type:"path"`
}

// passingSettings bound what a gateway passes on.
type passingSettings struct {
	MaxCellCalls  int           `type:"count" min:"1" max:"1000000" default:"2048"`
	MaxCellWaits  int           `type:"count" min:"1" max:"1000000" default:"20000"`
	AnswerTimeout time.Duration `type:"duration" min:"1s" max:"24h" default:"2m"`
	MaxBody       int64         `type:"size" max:"256MiB" default:"8MiB"`
}

// queueSettings are about events and schedules.
type queueSettings struct {
	Queues              string        `type:"choice" choices:"any,declared" placeholder:"WHICH" default:"any"`
	MaxAttempts         int           `type:"count" min:"1" max:"2147483647" default:"3"`
	SweepInterval       time.Duration `type:"duration" min:"100ms" off:"" default:"10s"`
	MaxVTAge            time.Duration `type:"duration" unset:"none: only exhausted attempts expire events"`
	HistoryRetention    time.Duration `type:"duration" unset:"none: kept for ever"`
	KeyRetention        time.Duration `type:"duration" max:"87600h" default:"24h"`
	MisfireGrace        time.Duration `type:"duration" default:"1m"`
	OccurrenceRetention time.Duration `type:"duration" min:"48h" off:"" default:"2160h"`
}

// pushSettings are about queues that push.
type pushSettings struct {
	PushAllow     string `type:"allow-list" placeholder:"LIST" unset:"none: public addresses, by https"`
	PushProxy     string `type:"proxy-url" unset:"none: endpoints are called directly"`
	PushProxyFile string `type:"path"`
}

// limitSettings bound the resources of requests.
type limitSettings struct {
	MaxBody        int64         `type:"size" max:"256MiB" default:"1MiB"`
	MaxBatchBody   int64         `type:"size" max:"1GiB" default:"8MiB"`
	MaxBodyMemory  int64         `type:"size" max:"1024GiB" unset:"128MiB, or twice the largest body where that is more"`
	RequestTimeout time.Duration `type:"duration" max:"24h" default:"15s"`
	MaxPending     int64         `type:"size" max:"64GiB" default:"64MiB"`
	QueryTimeout   time.Duration `type:"duration" max:"24h" default:"5s"`
	MaxConns       int           `type:"count" min:"2" max:"10000" unset:"16, or what pool_max_conns in the database URL says"`
}

// logSettings are about the lines on standard error.
type logSettings struct {
	LogLevel  string `type:"choice" choices:"trace,debug,info,warn,error" placeholder:"LEVEL" default:"info"`
	LogFormat string `type:"choice" choices:"auto,json,console" placeholder:"FORMAT" default:"auto"`
}

// settingHelp describes each setting, by its flag, to the people who run queued.
var settingHelp = map[string]string{
	"database-url":      "The PostgreSQL to use, as a URL or as libpq keywords.",
	"database-url-file": "A file that holds the database URL.",
	"data-dir":          "The data directory of the private PostgreSQL; the variable is unused with a database URL, and the flag is refused.",
	"listen-url":        "Where to listen for notifications when the database URL leads to a pooler: the same database, directly.",
	"listen-url-file":   "A file that holds the URL to listen at.",
	"start-timeout": "How long to wait at the start for a database that cannot be reached; " +
		"meanwhile /livez answers 200 and /readyz 503.",
	"require-sync": "Answer 503 at /readyz while the database's commits wait for no synchronous standby.",
	"no-migrate":   "Do not migrate the database at the start; exit with an error when a migration is due.",
	"adopt": "What to do with a copy of a database, such as a restored dump: ask suspends pushes, schedules and deliveries of subscriptions until " +
		"'queued adopt' is run; always adopts it at once.",
	"background": "Whether this process pushes, fires schedules and delivers subscriptions: with off it only answers calls, and looks after the database, " +
		"whatever the database is.",
	"cell": "Which cell the database is, 0 to 255, where several are behind a gateway: it gives out ids of its own. A new database takes the number at its first start and keeps it; " +
		"another number stops the start. 0 is home, and what a single database is.",
	"force-migrate": "Migrate although processes are alive whose version cannot run on the new schema: their calls fail from then on.",

	"secret-key": "What seals the secrets of webhooks in the database: one key or more of at least 16 bytes, separated by commas or white space. The first seals, " +
		"all open. A restored database needs them: keep them as you keep backups, but not in the same place.",
	"secret-key-file": "A file that holds the secret keys.",

	"listen": "The address to serve on, host:port; :port means every interface, port 0 any free port.",
	"hosts": "Names that requests may be made to beside localhost, by their Host header, separated by commas; with * any. A server on loopback refuses others with 421, " +
		"because a web page can have its own name resolve to 127.0.0.1; name there what a proxy in front passes on.",
	"tls-cert": "A file with the server's certificate in PEM, followed by those that lead to its authority: serve HTTPS, with HTTP/2. " +
		"It is read again when it changes.",
	"tls-key": "A file with the private key of the certificate in PEM, not encrypted. It is read again when it changes.",
	"tls-client-ca": "A file with certificates of authorities in PEM: every call but the health checks needs a client certificate that one of them signed. " +
		"It is read again when it changes.",
	"api-key": "An admin key of at least 16 characters, beside those that 'queued keys' makes, which callers send as 'Authorization: Bearer KEY'; one or the other is needed to " +
		"listen on anything but loopback. Other users of the machine can see flags: prefer the variable or the file.",
	"api-key-file":     "A file that holds the API key.",
	"audit-retention":  "How long the audit of keys and of what they manage is kept; off or 0 for ever.",
	"drain-delay":      "How long to go on serving after a stop signal while /readyz answers 503, so that load balancers notice.",
	"shutdown-timeout": "How long requests in progress may take to finish after a stop.",

	"access-log": "Which requests to log at info: slow leaves out successful inserts, claims, acks, nacks, extends, publications, " +
		"reads and commits of the log and of subscriptions, health checks and scrapes that take less than a second beyond their wait, which are logged at debug; all leaves out none.",
	"ui-payloads": "Whether the pages at /ui/ show what events carry: hidden leaves out payloads, metadata, results and raw bodies, downloads of them and searches in them, but not the errors of workers. " +
		"It does not change what the API answers, to a key or to the session of a browser.",

	"queues": "Which queues may be used: any, whose first use makes them, or declared, which are those that somebody has made with PUT /queues/{name}; calls that name others are " +
		"then answered 404 queue_not_declared.",
	"max-attempts":   "How often an event is claimed before it expires, unless its queue or its insert says otherwise.",
	"sweep-interval": "Time between the sweeps that move exhausted events to history, at least 100ms; off or 0 for none.",
	"max-vt-age": "Sweeps also expire events that nobody claimed for this long after they could have been claimed; " +
		"a pause stops that clock.",
	"history-retention": "Delete history older than this, such as 720h for 30 days.",
	"key-retention":     "How long an idempotency key is kept after its insert, up to 87600h.",
	"misfire-grace":     "How late an occurrence of a schedule may fire; after that the schedule's misfire policy decides.",
	"occurrence-retention": "How long occurrences of schedules are kept, at least 48h; off or 0 for ever. " +
		"/schedules/{id}/occurrences lists them, and they keep an occurrence from firing twice.",

	"push-allow": "What queues may push to besides public addresses by https: networks, addresses, names, or '*.' and a suffix of names, separated by commas, " +
		"such as '10.1.0.0/16,billing.internal,*.svc.cluster.local'. These may be called by http, too.",
	"push-proxy": "The proxy that pushes go through, as a URL of http, https or socks5. It then looks up names, and has to refuse internal addresses itself. " +
		"HTTP_PROXY and its like are not read.",
	"push-proxy-file": "A file that holds the URL of the proxy.",

	"max-body":       "The largest body of a request other than a batch, and for a gateway of any, up to 256MiB.",
	"max-batch-body": "The largest body of a batch, up to 1GiB.",
	"max-body-memory": "How much memory the bodies of all requests in progress may take together, at least twice the largest body, up to 1024GiB; beyond it requests are answered 503 overloaded. Large answers that are not read yet may take as much again. " +
		"Webhooks that have not proved who sent them may take an eighth of it.",
	"request-timeout": "How long a request may take once it has been read, besides the wait of a claim or a read and streams, up to 24h; then it is answered 503.",
	"max-pending":     "How much may wait to be written to the database, up to 64GiB; beyond it calls are answered 503 overloaded at once.",
	"query-timeout":   "How long a listing, a count or a search of history may take, up to 24h.",
	"max-conns":       "The most connections to the database for events, 2 to 10000, of which fewer than 7 count as 7. A process opens 20 more at most, for everything else.",

	"url":        "The server to talk to.",
	"key":        "The API key. Other users of the machine can see flags: prefer the variable or the file.",
	"key-file":   "A file that holds the API key.",
	"cacert":     "A file with certificates of authorities in PEM: one of them has to have signed the server's certificate, instead of those that the system trusts.",
	"cert":       "A file with the certificate that proves to the server who calls, in PEM, followed by those that lead to its authority.",
	"client-key": "A file with the private key of --cert in PEM, not encrypted.",
	"context": "The context to use, as 'queued context' lists them: a server with its key and certificates. Variables do not count beside the flag; beside the variable those of " +
		"keys and certificates do.",

	"cells": "The cells that the gateway is in front of, each a number from 0 to 255 and the base URL of its servers, separated by commas, such as " +
		"'0=https://a.internal:8080,1=https://b.internal:8080'. 0 is home, and must be there.",
	"cell-keys": "Keys of single cells instead of --key, each a number and an admin key of that cell, such as '0=KEY 1=KEY', separated by spaces or line ends: so no cell learns " +
		"the key of another one. Other users of the machine can see flags: prefer the file.",
	"cell-keys-file": "A file that holds the keys of single cells.",
	"max-cell-calls": "The most calls that one cell may hold at a time, besides those that wait; beyond it calls for the cell are answered 503 overloaded.",
	"max-cell-waits": "The most claims and other calls that wait, and streams, that one cell may hold at a time.",
	"answer-timeout": "How long a cell may take to begin an answer, more than the longest wait of a call and QUEUED_REQUEST_TIMEOUT and QUEUED_QUERY_TIMEOUT of the cells, up to 24h.",

	"log-level":  "The lowest level to log: trace, debug, info, warn or error.",
	"log-format": "How lines are written: json, console (for people), or auto, which is console on a terminal and json otherwise.",
}
