#include "base/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstring>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/version.h"

namespace somnus {
namespace {

constexpr absl::string_view kGnuOwner("GNU\0", 4);
constexpr uint64_t kMaxNoteBytes = 1 << 20;

constexpr size_t RoundUp(size_t bytes, size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// The build id among the notes of one segment; empty when absent.
absl::string_view FindBuildId(absl::string_view notes, size_t alignment) {
  ElfW(Nhdr) note;
  while (notes.size() >= sizeof(note)) {
    std::memcpy(&note, notes.data(), sizeof(note));
    const size_t id_at = RoundUp(sizeof(note) + note.n_namesz, alignment);
    const size_t end = RoundUp(id_at + note.n_descsz, alignment);
    if (id_at + note.n_descsz > notes.size()) break;
    if (note.n_type == NT_GNU_BUILD_ID && notes.substr(sizeof(note), note.n_namesz) == kGnuOwner) {
      return notes.substr(id_at, note.n_descsz);
    }
    notes.remove_prefix(end < notes.size() ? end : notes.size());
  }
  return {};
}

// For dl_iterate_phdr, which names the program itself first and libraries after it.
int ReadProgram(dl_phdr_info* program, size_t, void* result) {
  for (int i = 0; i < program->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = program->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const absl::string_view notes(reinterpret_cast<const char*>(program->dlpi_addr + segment.p_vaddr),
                                  segment.p_memsz);
    // Notes are aligned to 4 bytes unless their segment asks for 8.
    const absl::string_view id = FindBuildId(notes, segment.p_align == 8 ? 8 : 4);
    if (id.empty()) continue;
    *static_cast<std::string*>(result) = absl::BytesToHexString(id);
    break;
  }
  return 1;  // Libraries are not asked.
}

std::string Fallback() { return absl::StrCat("version-", kVersion); }

std::string ReadBuildId() {
  std::string id;
  dl_iterate_phdr(ReadProgram, &id);
  return id.empty() ? Fallback() : id;
}

// Reads `size` bytes at `offset`; fewer where the file ends.
std::string ReadAt(std::ifstream* file, uint64_t offset, uint64_t size) {
  std::string bytes(size, '\0');
  file->clear();
  file->seekg(static_cast<std::streamoff>(offset));
  file->read(bytes.data(), static_cast<std::streamsize>(size));
  bytes.resize(static_cast<size_t>(file->gcount()));
  return bytes;
}

}  // namespace

absl::StatusOr<std::string> BuildIdOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, " cannot be read"));
  const std::string start = ReadAt(&file, 0, sizeof(ElfW(Ehdr)));
  ElfW(Ehdr) header;
  if (start.size() < sizeof(header) || start.compare(0, SELFMAG, ELFMAG) != 0)
    return absl::InvalidArgumentError(absl::StrCat(path, " is no program"));
  std::memcpy(&header, start.data(), sizeof(header));
  const std::string table = ReadAt(&file, header.e_phoff, uint64_t{header.e_phnum} * sizeof(ElfW(Phdr)));
  for (size_t at = 0; at + sizeof(ElfW(Phdr)) <= table.size(); at += sizeof(ElfW(Phdr))) {
    ElfW(Phdr) segment;
    std::memcpy(&segment, table.data() + at, sizeof(segment));
    if (segment.p_type != PT_NOTE || segment.p_filesz > kMaxNoteBytes) continue;
    const std::string notes = ReadAt(&file, segment.p_offset, segment.p_filesz);
    const absl::string_view id = FindBuildId(notes, segment.p_align == 8 ? 8 : 4);
    if (!id.empty()) return absl::BytesToHexString(id);
  }
  return Fallback();
}

const std::string& BuildId() {
  static const std::string* const id = new std::string(ReadBuildId());
  return *id;
}

}  // namespace somnus
