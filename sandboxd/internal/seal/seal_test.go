package seal

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// announced is a body that says when it is read, which is once its request has arrived.
type announced struct {
	io.Reader
	read func()
}

func (a announced) Read(p []byte) (int, error) {
	a.read()
	return a.Reader.Read(p)
}

func TestAWitnessWhoSpokeDuringTheRoundIsNotTheSecond(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	word := `{"dial":["` + l.Addr().String() + `"]}`
	l.Close() // from here on the address denies
	s, mux := New(func() {}), http.NewServeMux()
	s.Routes(mux)
	speak := func(read func()) string {
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequest("POST", "/v1/seal", announced{strings.NewReader(word), read}))
		return answer.Body.String()
	}
	var arrived, answered sync.WaitGroup
	s.mu.Lock() // as the first round holds it
	for range 4 {
		arrived.Add(1)
		answered.Add(1)
		go func() {
			defer answered.Done()
			if text := speak(sync.OnceFunc(arrived.Done)); !strings.Contains(text, `"denied":true`) || !strings.Contains(text, `"sealed":false`) {
				t.Error(text)
			}
		}()
	}
	arrived.Wait()
	s.mu.Unlock()
	answered.Wait()
	if text := speak(func() {}); !strings.Contains(text, `"sealed":true`) {
		t.Error(text)
	}
}
