package wire

import "encoding/json"

// Optional tells an absent member (Set false) from null (Set, Value nil).
type Optional[T any] struct {
	Set   bool
	Value *T
}

// UnmarshalJSON is called for present members only.
func (o *Optional[T]) UnmarshalJSON(body []byte) error {
	o.Set = true
	return json.Unmarshal(body, &o.Value)
}
