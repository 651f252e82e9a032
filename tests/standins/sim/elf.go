// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"slices"
)

// sharedObject is the smallest ELF file for this architecture that names a soname: what nvcdi
// and ldconfig look for in a driver library. It has no code and no symbols.
//
// The file is one loaded segment: header, program headers, string table,
// dynamic section, then the section headers that nvcdi's reader uses.
func sharedObject(soname string) []byte {
	const (
		headerSize  = 64
		programSize = 56
		sectionSize = 64
		programs    = 2
		tables      = headerSize + programs*programSize
	)
	names := []byte("\x00.dynstr\x00.dynamic\x00" + soname + "\x00")
	const dynstrName, dynamicName, sonameOffset = 1, 9, 18
	dynamicOffset := uint64(tables+len(names)+7) &^ 7
	dynamic := []elf.Dyn64{
		{Tag: int64(elf.DT_SONAME), Val: sonameOffset},
		{Tag: int64(elf.DT_STRTAB), Val: tables},
		{Tag: int64(elf.DT_STRSZ), Val: uint64(len(names))},
		{Tag: int64(elf.DT_NULL)},
	}
	dynamicSize := uint64(16 * len(dynamic))
	sectionsOffset := dynamicOffset + dynamicSize

	header := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(elfMachine), Version: uint32(elf.EV_CURRENT),
		Phoff: headerSize, Shoff: sectionsOffset,
		Ehsize: headerSize, Phentsize: programSize, Phnum: programs,
		Shentsize: sectionSize, Shnum: 3, Shstrndx: 1,
	}
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS] = byte(elf.ELFCLASS64)
	header.Ident[elf.EI_DATA] = byte(elf.ELFDATA2LSB)
	header.Ident[elf.EI_VERSION] = byte(elf.EV_CURRENT)

	segments := []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R), Filesz: sectionsOffset, Memsz: sectionsOffset, Align: 0x1000},
		{
			Type: uint32(elf.PT_DYNAMIC), Flags: uint32(elf.PF_R), Off: dynamicOffset, Vaddr: dynamicOffset,
			Paddr:  dynamicOffset,
			Filesz: dynamicSize, Memsz: dynamicSize, Align: 8,
		},
	}
	sections := []elf.Section64{
		{},
		{Name: dynstrName, Type: uint32(elf.SHT_STRTAB), Flags: uint64(elf.SHF_ALLOC), Addr: tables, Off: tables,
			Size: uint64(len(names)), Addralign: 1},
		{
			Name: dynamicName, Type: uint32(elf.SHT_DYNAMIC), Flags: uint64(elf.SHF_ALLOC), Addr: dynamicOffset,
			Off:  dynamicOffset,
			Size: dynamicSize, Link: 1, Addralign: 8, Entsize: 16,
		},
	}

	var out bytes.Buffer
	padding := make([]byte, dynamicOffset-uint64(tables+len(names)))
	for _, part := range []any{header, segments, names, padding, dynamic, sections} {
		// A bytes.Buffer takes everything, and every part has a fixed size.
		_ = binary.Write(&out, binary.LittleEndian, part)
	}
	return out.Bytes()
}

// hasSymbols reports whether a shared library has any: one that stands there for its name has none.
func hasSymbols(library []byte) bool {
	file, err := elf.NewFile(bytes.NewReader(library))
	if err != nil {
		return false
	}
	symbols, err := file.DynamicSymbols()
	return err == nil && len(symbols) > 0
}

// withoutSymbols is a shared library that lacks functions: the dynamic loader does not
// find them, as in the library of a driver that is too old for them.
func withoutSymbols(library []byte, lacks []string) ([]byte, error) {
	if len(lacks) == 0 {
		return library, nil
	}
	file, err := elf.NewFile(bytes.NewReader(library))
	if err != nil {
		return nil, fmt.Errorf("reading the NVML library: %w", err)
	}
	table := file.Section(".dynsym")
	symbols, err := file.DynamicSymbols()
	if err != nil || table == nil || file.Class != elf.ELFCLASS64 {
		return nil, fmt.Errorf("reading the symbols of the NVML library: %w", err)
	}
	const entrySize, section, value = elf.Sym64Size, 6, 8
	changed := slices.Clone(library)
	for _, name := range lacks {
		i := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("driver.lacks: the simulated NVML library has no %s anyway", name)
		}
		// The table begins with an empty entry, which is not in symbols. What is defined
		// nowhere and has no address is not found.
		entry := changed[table.Offset+uint64((i+1)*entrySize):][:entrySize]
		file.ByteOrder.PutUint16(entry[section:], uint16(elf.SHN_UNDEF))
		file.ByteOrder.PutUint64(entry[value:], 0)
	}
	return changed, nil
}
