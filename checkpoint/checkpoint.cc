#include "checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "checkpoint/mapped_checkpoint.h"
#include "checkpoint/mapped_file.h"

namespace somnus {

namespace {

// "meta-llama/Llama-3-8B": one folder and a name in it, as hubs call their models.
bool LooksLikeHubId(absl::string_view path) {
  const size_t slash = path.find('/');
  return slash != path.npos && slash > 0 && slash + 1 < path.size() && path.rfind('/') == slash &&
         path[0] != '.' && path[0] != '~' && !absl::EndsWithIgnoreCase(path, ".gguf");
}

// Advice on a directory without config.json: an adapter's directory, or one that holds GGUF files.
absl::string_view AdviceOnDirectory(const std::string& path) {
  std::error_code failed;
  absl::string_view advice;
  for (auto entry = std::filesystem::directory_iterator(path, failed);
       !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    if (name == "config.json") return "";
    if (name == "adapter_config.json") advice = "; an adapter is given by --lora-modules, beside a model";
    if (advice.empty() && absl::EndsWithIgnoreCase(name, ".gguf"))
      advice = "; of the GGUF files in a directory one is given, by its path";
  }
  return advice;
}

absl::string_view AdviceOnFile(const std::string& path, const absl::Status& refusal) {
  const bool is_other = !absl::EndsWithIgnoreCase(path, ".gguf") && absl::IsInvalidArgument(refusal) &&
                        absl::StrContains(refusal.message(), "not a GGUF file");
  return is_other ? "; of a Hugging Face checkpoint the directory is given" : "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path, LoadFormat format) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    const absl::Status status =
        absl::ErrnoToStatus(errno, absl::StrCat("model ", BaseName(path), ": cannot open"));
    if (!absl::IsNotFound(status) || !LooksLikeHubId(path)) return status;
    return absl::NotFoundError(absl::StrCat(status.message(),
                                            "; a model is a directory or a .gguf file on disk: one of ",
                                            "a hub is downloaded first, then its path is given"));
  }
  if (format == LoadFormat::kDummy) return OpenDummyCheckpoint(path);
  const bool is_directory = S_ISDIR(info.st_mode);
  auto checkpoint = is_directory ? OpenHfCheckpoint(path) : OpenGgufCheckpoint(path);
  if (checkpoint.ok()) return checkpoint;
  const absl::Status& refusal = checkpoint.status();
  const absl::string_view advice = is_directory ? AdviceOnDirectory(path) : AdviceOnFile(path, refusal);
  if (advice.empty()) return checkpoint;
  return absl::Status(refusal.code(), absl::StrCat(refusal.message(), advice));
}

}  // namespace somnus
