module github.com/queued/queued/client

go 1.25
