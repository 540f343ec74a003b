package main

import "time"

// settings is everything that serve can be told. Each field is a flag and, under its name in
// capitals with QUEUED_ before it, an environment variable; the type tag names the kind of value.
// The zero value of a field without a default means that nobody set it.
type settings struct {
	databaseSettings `embed:""`
	ListenURL        string        `name:"listen-url" type:"database-url" placeholder:"URL" group:"database" default-note:"none: the database URL" help:"Where to listen for notifications when the database URL leads to a pooler: the same database, directly."`
	ListenURLFile    string        `name:"listen-url-file" type:"path" placeholder:"FILE" group:"database" help:"A file that holds the URL to listen at."`
	StartTimeout     time.Duration `name:"start-timeout" type:"duration" placeholder:"DURATION" default:"5m" group:"database" help:"How long to wait at the start for a database that cannot be reached; /livez says 200 and /readyz 503 meanwhile."`
	RequireSync      bool          `name:"require-sync" type:"switch" group:"database" help:"Say 503 at /readyz as long as the database's commits wait for no synchronous standby."`
	NoMigrate        bool          `name:"no-migrate" type:"switch" group:"database" help:"Do not migrate the database at the start; exit with an error when a migration is due."`

	httpSettings  `embed:""`
	queueSettings `embed:""`
	limitSettings `embed:""`
	logSettings   `embed:""`
}

// databaseSettings says where the events are.
type databaseSettings struct {
	DatabaseURL     string `name:"database-url" type:"database-url" placeholder:"URL" group:"database" default-note:"none: a private PostgreSQL" help:"The PostgreSQL to use, as a URL or as libpq keywords."`
	DatabaseURLFile string `name:"database-url-file" type:"path" placeholder:"FILE" group:"database" help:"A file that holds the database URL."`
	DataDir         string `name:"data-dir" type:"path" placeholder:"DIR" group:"database" default-note:"/var/lib/queued for root, else ~/.local/share/queued" help:"Where the private PostgreSQL keeps its data; unused with a database URL."`
}

// httpSettings is the front door.
type httpSettings struct {
	listenSettings  `embed:""`
	APIKey          string        `name:"api-key" type:"secret" placeholder:"KEY" group:"http" help:"What callers must send as 'Authorization: Bearer KEY'; needed to listen on anything but loopback. Other users of the machine can see flags: prefer the variable or the file."`
	APIKeyFile      string        `name:"api-key-file" type:"path" placeholder:"FILE" group:"http" help:"A file that holds the API key."`
	DrainDelay      time.Duration `name:"drain-delay" type:"duration" zero:"" placeholder:"DURATION" default:"0s" group:"http" help:"How long to go on serving after a stop signal while /readyz says 503, for load balancers to take notice."`
	ShutdownTimeout time.Duration `name:"shutdown-timeout" type:"duration" placeholder:"DURATION" default:"30s" group:"http" help:"How long requests under way at a stop may take to finish."`
}

// listenSettings is where the front door stands.
type listenSettings struct {
	Listen string `name:"listen" type:"listen" placeholder:"ADDRESS" default:"127.0.0.1:8080" group:"http" help:"The address to serve on, host:port; :port means every interface, port 0 any free port."`
}

// queueSettings is how events live.
type queueSettings struct {
	MaxAttempts         int           `name:"max-attempts" type:"count" min:"1" max:"2147483647" placeholder:"N" default:"3" group:"queue" help:"How often an event is claimed before it expires, unless a call says otherwise."`
	SweepInterval       time.Duration `name:"sweep-interval" type:"interval" min:"100ms" placeholder:"DURATION" default:"10s" group:"queue" help:"Time between the sweeps that move used-up events to history, at least 100ms; off or 0 for none."`
	MaxVTAge            time.Duration `name:"max-vt-age" type:"duration" placeholder:"DURATION" default-note:"none: only used-up attempts expire events" group:"queue" help:"Sweeps also expire events that nobody claimed for this long after they could have been; a pause stops that clock."`
	HistoryRetention    time.Duration `name:"history-retention" type:"duration" placeholder:"DURATION" default-note:"none: kept for ever" group:"queue" help:"Drop history older than this, such as 720h for 30 days."`
	KeyRetention        time.Duration `name:"key-retention" type:"duration" max:"87600h" placeholder:"DURATION" default:"24h" group:"queue" help:"How long an idempotency key stands for the event posted under it, up to 87600h."`
	MisfireGrace        time.Duration `name:"misfire-grace" type:"duration" placeholder:"DURATION" default:"1m" group:"queue" help:"How late an occurrence of a schedule may be and still fire as if in time; beyond it the schedule's misfire policy decides."`
	OccurrenceRetention time.Duration `name:"occurrence-retention" type:"interval" min:"48h" placeholder:"DURATION" default:"2160h" group:"queue" help:"How long what schedules did is kept, at least 48h; off or 0 for ever. It is what /schedules/{id}/occurrences shows, and what keeps an occurrence from coming twice."`
}

// limitSettings bounds what one call, or all of them, may take.
type limitSettings struct {
	MaxBody        int64         `name:"max-body" type:"size" max:"268435456" placeholder:"SIZE" default:"1MiB" group:"limits" help:"The largest body of a request that carries one event or none, up to 256MiB."`
	MaxBatchBody   int64         `name:"max-batch-body" type:"size" max:"1073741824" placeholder:"SIZE" default:"8MiB" group:"limits" help:"The largest body of a batch, up to 1GiB."`
	MaxBatch       int           `name:"max-batch" type:"count" min:"1" max:"1000" placeholder:"N" default:"1000" group:"limits" help:"The most elements of one batch, up to 1000."`
	MaxDepth       int           `name:"max-depth" type:"count" min:"1" max:"1000" placeholder:"N" default:"64" group:"limits" help:"How deep the JSON of a body may be nested, up to 1000 levels."`
	RequestTimeout time.Duration `name:"request-timeout" type:"duration" max:"24h" placeholder:"DURATION" default:"15s" group:"limits" help:"How long a request may take once it has been read, besides the time that a claim asks to wait; then it is answered 503, up to 24h."`
	MaxPending     int64         `name:"max-pending" type:"size" max:"68719476736" placeholder:"SIZE" default:"64MiB" group:"limits" help:"How much may wait to be written to the database; beyond it calls are answered 503 overloaded at once, up to 64GiB."`
	QueryTimeout   time.Duration `name:"query-timeout" type:"duration" max:"24h" placeholder:"DURATION" default:"5s" group:"limits" help:"How long a listing, a count or a search of history may take, up to 24h."`
	MaxConns       int           `name:"max-conns" type:"count" min:"2" max:"10000" placeholder:"N" default-note:"16, or what pool_max_conns in the database URL says" group:"limits" help:"The most connections to the database for events, 2 to 10000, of which fewer than 7 count as 7; schedules take up to eight more, and listening one."`
}

// logSettings is what is written to standard error.
type logSettings struct {
	LogLevel  string `name:"log-level" type:"choice" choices:"trace,debug,info,warn,error" placeholder:"LEVEL" default:"info" group:"log" help:"The least severe lines to log: trace, debug, info, warn or error."`
	LogFormat string `name:"log-format" type:"choice" choices:"auto,json,console" placeholder:"FORMAT" default:"auto" group:"log" help:"How lines are written: json, console (for people), or auto, which is console on a terminal and json otherwise."`
}
