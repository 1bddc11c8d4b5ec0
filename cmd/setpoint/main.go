// Command setpoint is a declarative control plane in one binary.
package main

import (
	"os"

	"setpoint.dev/setpoint/cli"
)

func main() { os.Exit(cli.Main()) }
