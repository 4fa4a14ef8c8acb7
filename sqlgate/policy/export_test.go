package policy

// Catalogue is name and severity of every finding, for the page that lists them.
func Catalogue() map[string][2]string {
	all := map[string][2]string{}
	for code, entry := range catalogue {
		all[code] = [2]string{entry.name, entry.severity}
	}
	return all
}

// FactNames are the facts in their order.
func FactNames() []string { return factNames() }
