#include "base/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/version.h"

namespace somnus {
namespace {

constexpr absl::string_view kGnuOwner("GNU\0", 4);

constexpr size_t RoundUp(size_t bytes, size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// The build id among the notes of one segment; empty when it is not there.
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

std::string ReadBuildId() {
  std::string id;
  dl_iterate_phdr(ReadProgram, &id);
  return id.empty() ? absl::StrCat("version-", kVersion) : id;
}

}  // namespace

const std::string& BuildId() {
  static const std::string* const id = new std::string(ReadBuildId());
  return *id;
}

}  // namespace somnus
