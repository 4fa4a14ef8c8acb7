package eventlog

import (
	"errors"
	"strings"
	"syscall"
)

// AsidePrefix begins the name of a folder that holds what was in the folder around it
// before, where that one could not be renamed itself. Nothing reads it again.
const AsidePrefix = "aside-"

// StaysInside tells names in a folder of the gate's that are no part of what the folder
// is for: what was put aside in it, what the volume made when it is mounted there, and
// names with a dot, which are others'.
func StaysInside(name string) bool {
	return strings.HasPrefix(name, AsidePrefix) || name == "lost+found" || strings.HasPrefix(name, ".")
}

// CannotMove tells the errors of a rename that don't go away with another try: of a mount
// point, of what lies on another volume or in a layer of a container's image, and of a
// folder in one that may not be written to. What is in a folder may still be moved.
func CannotMove(err error) bool {
	for _, e := range []error{syscall.EBUSY, syscall.EXDEV, syscall.EROFS, syscall.EACCES, syscall.EPERM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
