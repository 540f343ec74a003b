package http

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/rounds"
	"github.com/queued/queued/internal/topic"
)

const (
	// heartbeat is how long a stream is silent at most. Proxies are known to close connections that are silent for a minute.
	heartbeat = 15 * time.Second
	// blockedLimit is how long a client may take to make room for more of its stream.
	blockedLimit = 30 * time.Second
	// streamChunk is how much of a stream is written at once, unless one event is larger. With a batch of topic.Stream, which waits for that, and the
	// buffer of the socket, which Linux makes twice as large as asked for, a connection has 256 KiB in memory at most.
	streamChunk  = 16 << 10
	socketBuffer = 64 << 10
)

type streamRequest struct {
	logQuery
	streamOptions
	Token string `query:"token" validate:"min=1,max=8192"`
}

type streamSubscriptionRequest struct {
	Name string `path:"name" validate:"queue" log:"subscription" restrict:"subscription"`
	logPlace
	streamOptions
}

type streamOptions struct {
	Data        string `query:"data" validate:"oneof=event"`
	LastEventID *int64 `header:"Last-Event-ID" validate:"min=0,max=9007199254740991"`
}

// An eventSource has the events that a stream sends: a topic.Stream or a topic.SubscribedStream.
type eventSource interface {
	Next(ctx context.Context, wait time.Duration) (topic.Batch, error)
	Position() int64
	Close()
}

// stream answers with events as they are published.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, req streamRequest) error {
	return s.send(w, r, req.streamOptions, func(ctx context.Context) (eventSource, error) {
		filter, names, err := req.filter()
		if err != nil {
			return nil, err
		}
		after := req.LastEventID
		if after == nil {
			position, err := s.position(ctx, req.logPlace, "latest")
			if err != nil {
				return nil, err
			}
			after = &position
		}
		return s.topics.Follow(ctx, topic.FollowParams{After: *after, Filter: filter, Topics: names})
	})
}

// streamSubscription answers with the events of a subscription. It begins after the position of the subscription unless the request has another.
func (s *Server) streamSubscription(w http.ResponseWriter, r *http.Request, req streamSubscriptionRequest) error {
	return s.send(w, r, req.streamOptions, func(ctx context.Context) (eventSource, error) {
		after := req.LastEventID
		if after == nil && (req.After != "" || req.At != nil) {
			position, err := s.position(ctx, req.logPlace, "")
			if err != nil {
				return nil, err
			}
			after = &position
		}
		st, err := s.topics.FollowSubscription(ctx, req.Name, after)
		if err != nil {
			return nil, err
		}
		return &restrictedSource{st, logOf(r).grant}, nil
	})
}

// A restrictedSource has the events of a subscription that the caller may read.
type restrictedSource struct {
	eventSource
	grant *access.Grant
}

// Next implements eventSource.
func (src *restrictedSource) Next(ctx context.Context, wait time.Duration) (topic.Batch, error) {
	batch, err := src.eventSource.Next(ctx, wait)
	batch.Entries = slices.DeleteFunc(batch.Entries, func(e *topic.Entry) bool { return !mayRead(src.grant, e.Topic) })
	return batch, err
}

// send answers with the stream that open opens, until the client goes, the server drains, or a fault ends it.
func (s *Server) send(w http.ResponseWriter, r *http.Request, options streamOptions, open func(context.Context) (eventSource, error)) error {
	format, err := streamFormatFor(r.Header, options.Data != "")
	if err != nil {
		return err
	}
	st, err := s.open(r, options, open)
	if err != nil {
		if isComingBack(r) && problem.Of(err).Type.Status == http.StatusServiceUnavailable {
			logOf(r).err = err
			return sendBack(w)
		}
		return err
	}
	defer st.Close()
	out := &streamWriter{chunkWriter: newChunkWriter(w, r, s.blockedLimit), format: format}
	defer func() {
		s.metrics.streamed.Add(float64(out.events))
		logOf(r).add("events", out.events)
	}()
	if r.Method == http.MethodHead {
		out.begin()
		return nil
	}
	ctx, stop := logOf(r).grant.Watch(r.Context())
	defer stop()
	return s.copyStream(ctx, r, st, out)
}

// open opens a stream in the time of a request.
func (s *Server) open(r *http.Request, options streamOptions, open func(context.Context) (eventSource, error)) (eventSource, error) {
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.RequestTimeout)
	defer cancel()
	st, err := open(ctx)
	if invalid, ok := errors.AsType[*topic.InvalidError](err); ok && options.LastEventID != nil {
		return nil, problem.InField(problem.InvalidParameter, "Last-Event-ID", invalid.Detail)
	}
	return st, inQuery(err)
}

// copyStream writes the events of st until it ends, or ctx does: with the request, or when the caller may not go on. A client that resumes at the latest position it was
// told misses nothing.
func (s *Server) copyStream(ctx context.Context, r *http.Request, st eventSource, out *streamWriter) error {
	out.begin()
	err := out.write(func(b []byte) []byte { return out.format.position(b, st.Position(), retryAfter()) })
	limiter := s.cfg.Service.Rounds().Loop("writing to streams").Limiter()
	for err == nil {
		var batch topic.Batch
		before, began := st.Position(), time.Now()
		batch, err = st.Next(ctx, s.heartbeat)
		switch {
		case errors.Is(err, topic.ErrDraining):
			return out.end("draining")
		case r.Context().Err() != nil:
			return nil // the client has gone
		case ctx.Err() != nil:
			return out.end(problem.Of(context.Cause(ctx)).Type.Code) // who comes back is told why
		case err != nil:
			p := problem.Of(err)
			if p.Type.Status < http.StatusInternalServerError { // the subscription has gone: who comes back is told so
				return out.end(p.Type.Code)
			}
			logOf(r).err = err
			return out.end("failed")
		}
		err = out.batch(batch)
		if batch.Gap != nil && err == nil {
			s.metrics.gaps.Inc()
		}
		isIdle := len(batch.Entries) == 0 && st.Position() == before && time.Since(began) < rounds.MinWait
		_ = limiter.Pause(ctx, isIdle) // the next round finds that ctx has ended
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.metrics.blocked.Inc()
		logOf(r).add("ended", "blocked")
	}
	panic(http.ErrAbortHandler) // the answer must not look whole, and there is no more to be written
}

// A streamWriter writes a stream to a client.
type streamWriter struct {
	*chunkWriter
	format streamFormat
	events int
}

// A chunkWriter writes an answer to a client bit by bit, and gives up a client that does not make room for more.
type chunkWriter struct {
	w       http.ResponseWriter
	r       *http.Request
	control *http.ResponseController
	limit   time.Duration // of one write
}

func newChunkWriter(w http.ResponseWriter, r *http.Request, limit time.Duration) *chunkWriter {
	if conn, ok := r.Context().Value(connKey{}).(net.Conn); ok && r.ProtoMajor == 1 { // the connection of HTTP/2 is not the stream's alone
		if secured, ok := conn.(*tls.Conn); ok {
			conn = secured.NetConn()
		}
		if conn, ok := conn.(*net.TCPConn); ok {
			_ = conn.SetWriteBuffer(socketBuffer) // without it the stream takes more memory, and that is all
		}
	}
	return &chunkWriter{w: w, r: r, control: http.NewResponseController(w), limit: limit}
}

// begin writes the header.
func (o *streamWriter) begin() {
	h := o.w.Header()
	h.Set("Content-Type", o.format.mediaType())
	h["Cache-Control"] = noStore
	h.Set("X-Accel-Buffering", "no") // nginx would gather the stream otherwise
	o.w.WriteHeader(http.StatusOK)
}

// batch writes a batch, or how far the stream has come when there is nothing in it.
func (o *streamWriter) batch(batch topic.Batch) error {
	if batch.Gap != nil {
		if err := o.write(func(b []byte) []byte { return o.format.gap(b, *batch.Gap) }); err != nil {
			return err
		}
	}
	for rest := batch.Entries; len(rest) > 0; {
		n := 0
		err := o.write(func(b []byte) []byte {
			for ; n < len(rest) && len(b) < streamChunk; n++ {
				b = o.format.event(b, rest[n])
			}
			return b
		})
		if err != nil {
			return err
		}
		o.events += n
		rest = rest[n:]
	}
	if batch.Gap == nil && len(batch.Entries) == 0 {
		return o.write(func(b []byte) []byte { return o.format.position(b, batch.Next, 0) })
	}
	return nil
}

// end ends the stream so that the client comes back.
func (o *streamWriter) end(cause string) error {
	logOf(o.r).add("ended", cause)
	_ = o.write(func(b []byte) []byte { return o.format.end(b, retryAfter()) }) // who does not get it comes back after the time it knows
	return nil
}

// streamChunks are buffers for single writes. A stream has one only while it writes.
var streamChunks = sync.Pool{New: func() any { return new([]byte) }}

// write writes the bytes that fill appends, and sends them to the client.
func (o *chunkWriter) write(fill func([]byte) []byte) error {
	buffer := streamChunks.Get().(*[]byte)
	b := fill((*buffer)[:0])
	defer func() {
		if cap(b) <= maxPooled {
			*buffer = b
			streamChunks.Put(buffer)
		}
	}()
	if err := o.control.SetWriteDeadline(time.Now().Add(o.limit)); err != nil {
		return err
	}
	if _, err := o.w.Write(b); err != nil {
		return err
	}
	if err := o.control.Flush(); err != nil || o.r.ProtoMajor == 1 {
		return err
	}
	// HTTP/1 looks at the deadline when it writes. HTTP/2 ends the stream at that time, whether there is anything to write or not.
	return o.control.SetWriteDeadline(time.Time{})
}

// retryAfter is when a client is to come back. It is jittered, so that those of a server that stops do not come all at once.
func retryAfter() time.Duration {
	return time.Second + rand.N(3*time.Second) //nolint:gosec // jitter, no secret
}

// isComingBack reports whether a browser resumes a stream of Server-Sent Events. It would give up for good on any answer but 200.
func isComingBack(r *http.Request) bool {
	format, err := streamFormatFor(r.Header, false)
	return err == nil && format == eventStream{} && r.Header.Get("Last-Event-ID") != ""
}

// sendBack answers a browser that resumes a stream at a time when there is none to be had, so that it tries again.
func sendBack(w http.ResponseWriter) error {
	h := w.Header()
	h.Set("Content-Type", eventStream{}.mediaType())
	h["Cache-Control"] = noStore
	_, err := w.Write(eventStream{}.end(nil, retryAfter()))
	return err
}

// connKey is the key of the connection in the context of its requests.
type connKey struct{}
