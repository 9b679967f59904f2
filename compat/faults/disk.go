package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Three segments of the log and the trees of some fifty ranges fit in.
const diskBytes = 512 << 20

// Below this no block of the file system's data or journal lies.
const failingDeviceBytes = 64 << 10

// disk is a small ext4 of its own, on a loop device over a file.
// It is mounted from newDisk to close.
type disk struct {
	image  string
	mount  string
	device string

	mu sync.Mutex
	// Open while the file system is frozen.
	frozen *os.File
	// Gets what became of a write that was begun right after the freeze.
	tried chan error
}

func newDisk(dir, name string) (*disk, error) {
	d := &disk{image: filepath.Join(dir, name+".img"), mount: filepath.Join(dir, name)}
	if err := os.MkdirAll(d.mount, 0o700); err != nil {
		return nil, err
	}
	image, err := os.Create(d.image)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	if err := image.Truncate(diskBytes); err != nil {
		return nil, err
	}
	if _, err := command("mkfs.ext4", "-q", "-b", "4096", "-m", "0",
		"-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", d.image); err != nil {
		return nil, err
	}
	if d.device, err = command("losetup", "--find", "--show", d.image); err != nil {
		return nil, err
	}
	if err := d.attach(); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// data is the directory that a member keeps its data in.
func (d *disk) data() string { return filepath.Join(d.mount, "data") }

func (d *disk) attach() error {
	_, err := command("mount", "-t", "ext4", "-o", "errors=remount-ro", d.device, d.mount)
	return err
}

// detach unmounts it. The kernel may still be closing files of a process that
// has exited.
func (d *disk) detach() (err error) {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err = command("umount", d.mount); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// turnReadOnly has the file system find an error, after which it takes no writes.
func (d *disk) turnReadOnly() error {
	return os.WriteFile(filepath.Join("/sys/fs/ext4", filepath.Base(d.device), "trigger_fs_error"), []byte("1"), 0)
}

// failWrites has every write to the device fail with EIO, and every read that
// no cache answers: the device ends before all blocks that the file system uses.
func (d *disk) failWrites() error { return d.limitDevice(failingDeviceBytes) }

// limitDevice sets where the device ends; 0: where its file does.
func (d *disk) limitDevice(bytes uint64) error {
	const getStatus, setStatus, sizeLimitAt = 0x4C05, 0x4C04, 32
	device, err := os.Open(d.device)
	if err != nil {
		return err
	}
	defer device.Close()
	// struct loop_info64 of linux/loop.h.
	var info [29]uint64
	if err := ioctl(device, getStatus, unsafe.Pointer(&info)); err != nil {
		return fmt.Errorf("status of %s: %w", d.device, err)
	}
	info[sizeLimitAt/8] = bytes
	if err := ioctl(device, setStatus, unsafe.Pointer(&info)); err != nil {
		return fmt.Errorf("size of %s: %w", d.device, err)
	}
	return nil
}

// freeze has every write to the file system wait until thaw.
func (d *disk) freeze() error {
	const fiFreeze = 0xC0045877
	d.mu.Lock()
	defer d.mu.Unlock()
	mount, err := os.Open(d.mount)
	if err != nil {
		return err
	}
	if err := ioctl(mount, fiFreeze, nil); err != nil {
		mount.Close()
		return fmt.Errorf("freeze %s: %w", d.mount, err)
	}
	d.frozen, d.tried = mount, make(chan error, 1)
	go func(tried chan<- error) {
		tried <- os.WriteFile(filepath.Join(d.mount, "tried"), []byte("1"), 0o600)
	}(d.tried)
	return nil
}

// thaw ends a freeze; without one it does nothing. It is an error if the freeze
// didn't hold.
func (d *disk) thaw() error {
	const fiThaw = 0xC0045878
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.frozen == nil {
		return nil
	}
	var leaked error
	select {
	case <-d.tried:
		leaked = fmt.Errorf("%s took a write while it was frozen", d.mount)
	default:
	}
	err := ioctl(d.frozen, fiThaw, nil)
	d.frozen.Close()
	d.frozen = nil
	if err == nil && leaked == nil {
		<-d.tried
	}
	return errors.Join(err, leaked)
}

func (d *disk) filler() string { return filepath.Join(d.mount, "filler") }

// fill leaves no free block on the file system.
func (d *disk) fill() error {
	filler, err := os.OpenFile(d.filler(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer filler.Close()
	for end, step := int64(0), int64(16<<20); step >= 4096; {
		err := syscall.Fallocate(int(filler.Fd()), 0, end, step)
		switch {
		case err == nil:
			end += step
		case errors.Is(err, syscall.ENOSPC):
			step /= 2
		case !errors.Is(err, syscall.EINTR):
			return fmt.Errorf("fill %s: %w", d.mount, err)
		}
	}
	return nil
}

// free ends fill; without one it does nothing.
func (d *disk) free() error {
	if err := os.Remove(d.filler()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// repair makes a disk whole that was turned read-only or whose writes failed,
// as an operator would. No process may use it.
func (d *disk) repair() error {
	if err := d.limitDevice(0); err != nil {
		return err
	}
	if err := d.detach(); err != nil {
		return err
	}
	// 1: errors were corrected.
	output, err := exec.Command("e2fsck", "-p", d.device).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) {
		return fmt.Errorf("e2fsck %s: %w: %s", d.device, err, output)
	}
	return d.attach()
}

// clear removes a member's data.
func (d *disk) clear() error { return os.RemoveAll(d.data()) }

// close gives everything back, whatever state the disk is in. No process may use it.
func (d *disk) close() error {
	errs := []error{d.thaw()}
	if mounted(d.mount) {
		errs = append(errs, d.detach())
	}
	if d.device != "" {
		_, err := command("losetup", "--detach", d.device)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, os.Remove(d.image))...)
}

func mounted(dir string) bool {
	mounts, _ := os.ReadFile("/proc/mounts")
	return strings.Contains(string(mounts), " "+dir+" ")
}

func ioctl(file *os.File, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, file.Fd(), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

// command runs a program and returns what it printed, without the line's end.
func command(name string, arguments ...string) (string, error) {
	output, err := exec.Command(name, arguments...).CombinedOutput()
	text := strings.TrimSpace(string(output))
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(arguments, " "), err, text)
	}
	return text, nil
}
