package cli

import (
	"os"

	"golang.org/x/sys/windows"
)

// terminalWidth returns the width of a terminal in characters; 0 if it is not known.
func terminalWidth(file *os.File) int {
	var info windows.ConsoleScreenBufferInfo
	if windows.GetConsoleScreenBufferInfo(windows.Handle(file.Fd()), &info) != nil {
		return 0
	}
	return int(info.Window.Right-info.Window.Left) + 1
}
