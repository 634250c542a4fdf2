package policy

import (
	"encoding/hex"
	"encoding/json"
	"sync"
)

// Offerings are the rows of a [ScoreInput]. They are built once for a revision of the
// catalogue and shared by all evaluations, which derive what they need from them once
// (see [Offerings.Memo]); so the rows must not change after the first evaluation.
type Offerings struct {
	// Rows in the order of the catalogue: by instance type, then by offering.
	Rows []OfferingRow
	// StaticRevision names the values of all fields that are not tagged dynamic; equal
	// revisions mean equal values. Empty means that it is computed.
	StaticRevision string

	memo sync.Map // any -> *memo
	// index is the row of each offering of each instance type of a catalogue, by the
	// type's name; -1 is none. It is nil for tables not made from one.
	index map[string][]int32
}

type memo struct {
	once  sync.Once
	value any
}

// NewOfferings returns the table of rows. Cost and bias of the rows are set to the list
// price and 0.
func NewOfferings(staticRevision string, rows []OfferingRow) *Offerings {
	for i := range rows {
		rows[i].Cost, rows[i].Bias = rows[i].Offering.ListPrice, 0
	}
	return &Offerings{Rows: rows, StaticRevision: staticRevision}
}

// Len is the number of rows; that of nil is 0.
func (o *Offerings) Len() int {
	if o == nil {
		return 0
	}
	return len(o.Rows)
}

// Memo returns what build returned when it was first called for key, which must be
// comparable. The value lives as long as the table does.
func (o *Offerings) Memo(key any, build func() any) any {
	v, ok := o.memo.Load(key)
	if !ok {
		v, _ = o.memo.LoadOrStore(key, &memo{})
	}
	m := v.(*memo)
	m.once.Do(func() { m.value = build() })
	return m.value
}

// MarshalJSON writes the rows as an array.
func (o *Offerings) MarshalJSON() ([]byte, error) {
	if o == nil || o.Rows == nil {
		return []byte("[]"), nil
	}
	return json.Marshal(o.Rows)
}

// UnmarshalJSON reads an array of rows.
func (o *Offerings) UnmarshalJSON(b []byte) error {
	var rows []OfferingRow
	if err := decode(b, &rows); err != nil {
		return err
	}
	// Rows of one type share it, as they do in a table made from a catalogue.
	types := map[string]*InstanceType{}
	for i := range rows {
		it := rows[i].InstanceType
		if it == nil {
			continue
		}
		j, err := json.Marshal(it)
		if err != nil {
			return err
		}
		if have, ok := types[string(j)]; ok {
			rows[i].InstanceType = have
		} else {
			types[string(j)] = it
		}
	}
	o.Rows, o.StaticRevision = rows, ""
	o.memo.Clear()
	return nil
}

type (
	digestKey   struct{ tree string }
	identityKey struct{}
)

// digest is the digest of what t selects of the rows, without the fields of the chain.
func (o *Offerings) digest(t *Tree) string {
	if o == nil {
		return ""
	}
	if t.static && o.StaticRevision != "" {
		return "static:" + o.StaticRevision
	}
	return o.Memo(digestKey{t.key}, func() any {
		d := newDigester()
		d.rows(o.Rows, t)
		return d.sum()
	}).(string)
}

// identity is the digest of the names of the rows: equal identities mean that row i of
// one table is row i of the other.
func (o *Offerings) identity() string {
	if o == nil {
		return ""
	}
	return o.Memo(identityKey{}, func() any {
		d := newDigester()
		for i := range o.Rows {
			r := &o.Rows[i]
			if r.InstanceType != nil {
				d.str(r.InstanceType.Name)
			}
			d.str(r.Offering.Zone)
			d.str(r.Offering.CapacityType)
			if r.Offering.Reservation != nil {
				d.str(r.Offering.Reservation.ID)
			}
		}
		return d.sum()
	}).(string)
}

// reservation is the ID of the row's reservation; "" is none.
func (r *OfferingRow) reservation() string {
	if r.Offering.Reservation == nil {
		return ""
	}
	return r.Offering.Reservation.ID
}

// name of row i for people: type/zone/capacity type.
func (o *Offerings) name(i int) string {
	r := &o.Rows[i]
	n := ""
	if r.InstanceType != nil {
		n = r.InstanceType.Name
	}
	return n + "/" + r.Offering.Zone + "/" + r.Offering.CapacityType
}

func hexSum(b [32]byte) string { return hex.EncodeToString(b[:]) }
