#include "checkpoint/tokenizer/hf_tokenizer_files.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {

absl::StatusOr<std::unique_ptr<MappedFile>> OpenLimited(const std::string& path, uint64_t max_bytes) {
  ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  if (file->size() <= max_bytes) return file;
  return absl::InvalidArgumentError(absl::StrCat(file->name(), ": longer than ", max_bytes, " bytes"));
}

absl::Status ReadOptionalFile(const std::string& path, const ParseFile& parse) {
  auto file = OpenLimited(path, kMaxTokenizerConfigBytes);
  if (absl::IsNotFound(file.status())) return absl::OkStatus();
  RETURN_IF_ERROR(file.status());
  const absl::Status status = parse((*file)->name(), (*file)->text());
  RETURN_IF_ERROR((*file)->CheckWhole());
  return status;
}

}  // namespace somnus
