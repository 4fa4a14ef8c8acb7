package sqlgate

import (
	"context"
	"slices"
	"strings"

	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
)

// SET, RESET and SHOW of the names that a connection keeps (wire_settings.go).

// setting is a SET or RESET of one name. A name outside of the list is none: it
// is refused as what the gate does not carry.
func (o *wireOrder) setting() *wireOrder {
	if isClaim(o.Name) {
		o.check = func(*Wire, *wireOrder) error {
			return wireErrorf("55P02", "parameter \"%s\" cannot be changed after connection start", o.Name)
		}
		return o
	}
	if _, ok := wireSettingTable[o.Name]; !ok {
		return nil
	}
	o.do = doSet
	return o
}

func isClaim(name string) bool {
	claim, found := strings.CutPrefix(name, "gate.")
	return found && slices.Contains([]string{"actor", "app", "tenant", "role", "env"}, claim)
}

func doSet(ctx context.Context, w *Wire, _ *submission, o *wireOrder) (r wireReply, err error) {
	value := w.initial(o.Name)
	if o.Kind == classify.ControlSet {
		text, err := setText(o.Control)
		if err != nil {
			return r, err
		}
		setting := wireSettingTable[o.Name]
		if value, err = setting.take(w, ctx, text); err != nil {
			return r, err
		}
	}
	if o.Local && !w.unit.explicit { // what stands before the next Sync is one transaction all the same
		r.notices = warning("25P01", "SET LOCAL can only be used in transaction blocks")
	}
	w.settings = w.settings.set(o.Name, value, o.Local)
	return r, nil
}

// setText is the value of a SET as one text, as PostgreSQL joins a list.
func setText(c *classify.Control) (string, error) {
	list := c.Name == "search_path" || c.Name == "datestyle"
	if len(c.Args) != 1 && !list {
		return "", wireErrorf("22023", "SET %s takes only one argument", c.Name)
	}
	texts := make([]string, len(c.Args))
	for i := range c.Args {
		a := &c.Args[i]
		if a.Kind == classify.ArgumentOther || a.Cast != nil {
			return "", wireErrorf("0A000", "not available through the gate: SET %s to anything but a constant", c.Name)
		}
		texts[i] = a.Text
	}
	return strings.Join(texts, ", "), nil
}

func doResetAll(_ context.Context, w *Wire, _ *submission, _ *wireOrder) (wireReply, error) {
	w.settings = wireSettings{}
	return wireReply{}, nil
}

// showing is a SHOW of a name that the gate keeps; any other is a read.
func (o *wireOrder) showing() *wireOrder {
	_, ok := wireSettingTable[o.Name]
	if !ok && !isClaim(o.Name) && !slices.Contains([]string{settingNowReadOnly, settingNowLevel, settingNowDefers}, o.Name) {
		return nil
	}
	o.do = doShow
	return o
}

func doShow(_ context.Context, w *Wire, s *submission, o *wireOrder) (wireReply, error) {
	value := ""
	switch _, ok := wireSettingTable[o.Name]; {
	case ok:
		value = w.show(o.Name)
	case o.Name == settingNowReadOnly:
		value = onOff(w.modes().ReadOnly)
	case o.Name == settingNowDefers:
		value = onOff(w.modes().Deferrable)
	case o.Name == settingNowLevel:
		value = w.level()
	default:
		value = w.claim(o.Name)
	}
	column := w.showColumn(o)
	column.Format = s.wire.format()
	err := s.wire.out.Fields([]pgexec.Field{column})
	if err == nil {
		err = s.wire.out.Row([][]byte{[]byte(value)})
	}
	return wireReply{tag: "SHOW"}, err
}

// showColumn is the one column of a SHOW.
func (w *Wire) showColumn(o *wireOrder) pgexec.Field {
	label := o.Name
	if setting, ok := wireSettingTable[o.Name]; ok {
		label = setting.label
	}
	return pgexec.Field{Label: label, TypeOID: 25, Modifier: -1, Size: -1}
}

// format is that of a single text column, whose bytes are the same in both.
func (c *wireCall) format() int16 {
	if c.portal == nil {
		return 0
	}
	return formatAt(c.portal.resultFormats, 0)
}

func (w *Wire) claim(name string) string {
	c := &w.login.Claims
	return map[string]string{"gate.actor": c.Actor, "gate.app": c.App, "gate.tenant": c.Tenant, "gate.role": c.Role, "gate.env": c.Env}[name]
}
