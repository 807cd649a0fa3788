// Takes, restores and validates stream backups with jsm.go, the library behind `nats backup`.
//
//	jsm backup   URL STREAM DIRECTORY [check]
//	jsm restore  URL STREAM DIRECTORY
//	jsm validate DIRECTORY...
//	jsm contexts FILE...
//	jsm version
//
// Tests use it to see what that library writes and what it takes. The last line on stdout is the stream's state, as JSON;
// of validate there is a line for each directory, with an error or what it counted; of contexts one for each file of a
// context, with an error or the login that comes of it.
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/nats-io/jsm.go"
	"github.com/nats-io/jsm.go/natscontext"
	jsmbackup "github.com/nats-io/jsm.go/backup"
	"github.com/nats-io/nats.go"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 1 && args[0] == "version" {
		return version()
	}
	if len(args) > 1 && args[0] == "validate" {
		return validate(args[1:])
	}
	if len(args) > 1 && args[0] == "contexts" {
		return contexts(args[1:])
	}
	if len(args) < 4 {
		return fmt.Errorf("usage: jsm backup|restore URL STREAM DIRECTORY, or jsm validate DIRECTORY...")
	}
	nc, err := nats.Connect(args[1])
	if err != nil {
		return err
	}
	defer nc.Close()
	manager, err := jsm.New(nc, jsm.WithTimeout(10*time.Second))
	if err != nil {
		return err
	}
	switch args[0] {
	case "backup":
		return backup(manager, args[2], args[3], len(args) > 4 && args[4] == "check")
	case "restore":
		return restore(manager, args[2], args[3])
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func backup(manager *jsm.Manager, name, directory string, check bool) error {
	stream, err := manager.LoadStream(name)
	if err != nil {
		return err
	}
	options := []jsm.SnapshotOption{jsm.SnapshotConsumers()}
	if check {
		options = append(options, jsm.SnapshotHealthCheck())
	}
	if _, err := stream.SnapshotToDirectory(context.Background(), directory, options...); err != nil {
		return err
	}
	state, err := stream.State()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(state)
}

func restore(manager *jsm.Manager, name, directory string) error {
	_, state, err := manager.RestoreSnapshotFromDirectory(context.Background(), name, directory)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(state)
}

// What `nats backup validate` does, for many directories at once.
func validate(directories []string) error {
	lines := json.NewEncoder(os.Stdout)
	for _, directory := range directories {
		found := map[string]any{"directory": directory, "error": ""}
		report, err := jsmbackup.Verify(directory)
		if err != nil {
			found["error"] = err.Error()
		} else {
			found["consumers"] = report.Consumers
			found["messages"] = report.Messages
			found["subjects"] = report.NumSubjects
			found["first_seq"] = report.FirstSeq
			found["last_seq"] = report.LastSeq
		}
		if err := lines.Encode(found); err != nil {
			return err
		}
	}
	return nil
}

func version() error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return fmt.Errorf("no build information")
	}
	for _, module := range info.Deps {
		if module.Path == "github.com/nats-io/jsm.go" {
			fmt.Println(module.Version)
		}
	}
	return nil
}

// login is what a client would send. Signature is that of "nonce", by which a seed shows.
type login struct {
	URL       string `json:"url"`
	User      string `json:"user"`
	Password  string `json:"password"`
	Token     string `json:"token"`
	JWT       string `json:"jwt"`
	NKey      string `json:"nkey"`
	Signature string `json:"signature"`
	Error     string `json:"error"`
}

func contexts(files []string) error {
	for _, file := range files {
		found, err := loginOf(file)
		if err != nil {
			found = login{Error: err.Error()}
		}
		if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
			return err
		}
	}
	return nil
}

func loginOf(file string) (login, error) {
	nctx, err := natscontext.NewFromFile(file)
	if err != nil {
		return login{}, err
	}
	made, err := nctx.NATSOptions()
	if err != nil {
		return login{}, err
	}
	var opts nats.Options
	for _, set := range made {
		if err := set(&opts); err != nil {
			return login{}, err
		}
	}
	found := login{URL: nctx.ServerURL(), User: opts.User, Password: opts.Password, Token: opts.Token, NKey: opts.Nkey}
	if opts.UserJWT != nil {
		if found.JWT, err = opts.UserJWT(); err != nil {
			return login{}, err
		}
	}
	if opts.SignatureCB != nil {
		signature, err := opts.SignatureCB([]byte("nonce"))
		if err != nil {
			return login{}, err
		}
		found.Signature = base64.StdEncoding.EncodeToString(signature)
	}
	return found, nil
}
