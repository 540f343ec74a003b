package pg_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/pg"
)

func TestLookUpsThatWaitAreMadeTogether(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var statements [][]int
	began, goOn := make(chan struct{}, 100), make(chan struct{})
	l := pg.LookUps[int, []int]{Most: 2, Timeout: time.Minute, Find: func(_ context.Context, keys []int) ([]int, error) {
		slices.Sort(keys)
		mu.Lock()
		statements = append(statements, keys)
		mu.Unlock()
		began <- struct{}{}
		<-goOn
		return keys, nil
	}}
	var asking sync.WaitGroup
	ask := func(key int) {
		asking.Go(func() {
			found, err := l.Get(t.Context(), key)
			if err != nil || !slices.Contains(found, key) {
				t.Errorf("look-up of %d: %v, %v", key, found, err)
			}
		})
	}
	ask(1)
	<-began
	ask(2)
	<-began
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Get(cancelled, 3); !errors.Is(err, context.Canceled) { // it is looked up nevertheless
		t.Errorf("a look-up whose caller has gone: %v", err)
	}
	waiting, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	for key := 3; key < 100; key++ {
		asking.Go(func() {
			if found, err := l.Get(waiting, key%10+3); err != nil || !slices.Contains(found, key%10+3) {
				t.Errorf("look-up of %d: %v, %v", key%10+3, found, err)
			}
		})
	}
	close(goOn)
	asking.Wait()
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(statements[0], []int{1}) || !slices.Equal(statements[1], []int{2}) {
		t.Errorf("the first look-ups were made by %v, each should be made at once", statements[:2])
	}
	for _, keys := range statements {
		if len(slices.Compact(slices.Clone(keys))) != len(keys) {
			t.Errorf("a statement asks for %v", keys)
		}
	}
}

func TestLookUpsOfTheSameMomentTakeTwoStatements(t *testing.T) {
	t.Parallel()
	const callers = 40
	began, goOn := make(chan int, callers), make(chan struct{})
	l := pg.LookUps[int, []int]{Most: 2, Timeout: time.Minute, Gather: time.Second, Find: func(_ context.Context, keys []int) ([]int, error) {
		began <- len(keys)
		<-goOn
		return keys, nil
	}}
	var asking sync.WaitGroup
	ask := func(key int) {
		asking.Go(func() {
			if found, err := l.Get(t.Context(), key); err != nil || !slices.Contains(found, key) {
				t.Errorf("look-up of %d: %v, %v", key, found, err)
			}
		})
	}
	ask(0)
	if n := <-began; n != 1 {
		t.Errorf("the first statement asks for %d keys, want 1", n)
	}
	for key := 1; key < callers; key++ {
		ask(key)
	}
	second := <-began
	close(goOn)
	asking.Wait()
	if second == 1 {
		t.Error("the second statement asks for one key, want those that were asked for in the same moment")
	}
}
