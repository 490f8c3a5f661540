#include "coordinator/grpc/gateway/tokenizer_archive.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "checkpoint/mapped_file.h"
#include "coordinator/grpc/gateway/stored_zip.h"

namespace somnus::gateway {
namespace {

// Below the 4 MiB of which clients take messages.
constexpr size_t kChunkBytes = 1 << 20;

// The first three are each enough for a tokenizer.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "tokenizer.model", "vocab.json"};
constexpr const char* kOtherFiles[] = {
    "merges.txt",        "vocab.txt",   "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "config.json", "generation_config.json"};
constexpr const char kTemplateFile[] = "chat_template.jinja";
constexpr const char* kTemplateFiles[] = {kTemplateFile, "chat_template.json"};

using Files = std::vector<std::unique_ptr<MappedFile>>;

// Cuts the archive into chunks, and hashes the archive on the way.
class Chunks {
 public:
  explicit Chunks(const std::function<bool(const common::GetTokenizerChunk&)>& write) : write_(write) {}

  bool Add(absl::string_view bytes) {
    hash_.AddBytes(bytes);
    while (!bytes.empty()) {
      std::string* const data = chunk_.mutable_data();
      if (data->size() == kChunkBytes && !Flush()) return false;
      const absl::string_view part = bytes.substr(0, kChunkBytes - data->size());
      data->append(part.data(), part.size());
      bytes.remove_prefix(part.size());
    }
    return true;
  }
  bool Finish() {
    chunk_.set_sha256(hash_.Hex());
    return Flush();
  }

 private:
  bool Flush() {
    const bool written = write_(chunk_);
    chunk_.Clear();
    return written;
  }

  const std::function<bool(const common::GetTokenizerChunk&)>& write_;
  Sha256 hash_;
  common::GetTokenizerChunk chunk_;
};

// Adds the file, if there is one.
absl::Status Open(const std::string& folder, const char* name, Files* files) {
  absl::StatusOr<std::unique_ptr<MappedFile>> file = MappedFile::Open(absl::StrCat(folder, "/", name));
  if (absl::IsNotFound(file.status())) return absl::OkStatus();
  if (!file.ok()) return absl::Status(file.status().code(), absl::StrCat(name, " cannot be read"));
  files->push_back(*std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<Files> OpenAll(const std::string& folder, bool with_templates) {
  Files files;
  for (const char* name : kTokenizerFiles) RETURN_IF_ERROR(Open(folder, name, &files));
  if (files.empty()) return absl::NotFoundError("the model's directory has no tokenizer any more");
  for (const char* name : kOtherFiles) RETURN_IF_ERROR(Open(folder, name, &files));
  if (with_templates) {
    for (const char* name : kTemplateFiles) RETURN_IF_ERROR(Open(folder, name, &files));
  }
  int64_t bytes = 0;
  for (const auto& file : files) bytes += static_cast<int64_t>(file->size());
  if (bytes > kMaxArchivedBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("the tokenizer's files are larger than ", kMaxArchivedBytes, " bytes"));
  }
  return files;
}

}  // namespace

absl::Status WriteTokenizer(const std::string& folder, const std::string& chat_template,
                            const std::function<bool(const common::GetTokenizerChunk&)>& write) {
  ASSIGN_OR_RETURN(const Files files, OpenAll(folder, /*with_templates=*/chat_template.empty()));
  Chunks chunks(write);
  StoredZip zip([&](absl::string_view bytes) { return chunks.Add(bytes); });
  for (const auto& file : files) {
    if (!zip.Add(file->name(), file->text())) return absl::CancelledError("the client has left");
    RETURN_IF_ERROR(file->CheckWhole());
  }
  if (!chat_template.empty() && !zip.Add(kTemplateFile, chat_template))
    return absl::CancelledError("the client has left");
  if (!zip.Finish() || !chunks.Finish()) return absl::CancelledError("the client has left");
  return absl::OkStatus();
}

}  // namespace somnus::gateway
