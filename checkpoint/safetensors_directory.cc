#include "checkpoint/safetensors_directory.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "checkpoint/json_reader.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors.h"

namespace somnus {
namespace {

constexpr char kSingle[] = "model.safetensors", kIndex[] = "model.safetensors.index.json";
constexpr char kEnding[] = ".safetensors";
constexpr size_t kMaxFiles = 10'000;

// An index is untrusted input, and may name only files inside its own directory.
absl::Status CheckShardName(const std::string& shard) {
  for (const absl::string_view part : absl::StrSplit(shard, '/')) {
    if (part.empty() || part == "." || part == ".." || part.find('\0') != absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(kIndex, ": weight_map: not the name of a file in the directory: ", shard));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MappedFile>> OpenShard(const std::string& directory,
                                                      const std::string& shard) {
  RETURN_IF_ERROR(CheckShardName(shard));
  return MappedFile::Open(directory + "/" + shard);
}

// weight_map, and the inverse of weight_map.
struct ShardIndex {
  absl::flat_hash_map<std::string, std::string> shard_of;  // tensor -> shard
  std::map<std::string, absl::flat_hash_set<std::string>> shards;
};

absl::Status ParseIndex(const MappedFile& index, ShardIndex* out) {
  JsonReader json(WithoutByteOrderMark(index.text()));
  std::string key, name, shard;
  bool found = false;
  json.BeginObject();
  while (json.NextKey(&key)) {
    if (key != "weight_map") {
      json.Skip();
      continue;
    }
    found = true;
    json.BeginObject();
    while (json.NextKey(&name)) {
      if (!json.ReadString(&shard)) break;
      if (!out->shard_of.emplace(name, shard).second) json.Fail("tensor " + name + " twice");
      out->shards[shard].insert(name);
    }
  }
  if (json.ok() && !json.AtEnd()) json.Fail("something follows the object");
  if (json.ok() && !found) json.Fail("weight_map is missing");
  if (json.ok()) return index.CheckWhole();
  return absl::InvalidArgumentError(absl::StrCat(index.name(), ": ", json.error()));
}

absl::Status ReadShards(const std::string& directory, const MappedFile& index, TensorTable* tensors) {
  ShardIndex map;
  RETURN_IF_ERROR(ParseIndex(index, &map));
  for (auto& [shard, left] : map.shards) {
    auto file = OpenShard(directory, shard);
    if (absl::IsNotFound(file.status())) {
      return absl::InvalidArgumentError(absl::StrCat(index.name(), ": shard ", shard, ", which holds tensor ",
                                                     *left.begin(), ", is missing"));
    }
    RETURN_IF_ERROR(file.status());
    // Skips a tensor that the index assigns to a different shard; takes a tensor that the index does not
    // name.
    const auto wanted = [&map, &shard = shard, &left = left](const std::string& name) {
      left.erase(name);
      const auto it = map.shard_of.find(name);
      return it == map.shard_of.end() || it->second == shard;
    };
    RETURN_IF_ERROR(ReadSafetensors(**file, wanted, tensors));
    if (!left.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(shard, ": tensor ", *left.begin(), ", which the index says is here, is missing"));
    }
    tensors->Keep(*std::move(file));
  }
  return absl::OkStatus();
}

// The parts of a name such as "model-00002-of-00003.safetensors".
struct PartName {
  std::string set;  // the name without the part's own number
  int64_t number = 0, count = 0;
};

std::optional<PartName> ParsePartName(absl::string_view name) {
  constexpr size_t kDigits = 5;
  PartName part;
  name.remove_suffix(sizeof(kEnding) - 1);
  const size_t tail = 2 * kDigits + 4;  // "00002-of-00003"
  if (name.size() < tail || name.substr(name.size() - tail + kDigits, 4) != "-of-") return std::nullopt;
  const absl::string_view digits = name.substr(name.size() - tail);
  if (!absl::SimpleAtoi(digits.substr(0, kDigits), &part.number)) return std::nullopt;
  if (!absl::SimpleAtoi(digits.substr(kDigits + 4), &part.count)) return std::nullopt;
  part.set = absl::StrCat(name.substr(0, name.size() - tail), "*", digits.substr(kDigits), kEnding);
  return part;
}

// Ok unless a part of a numbered set is missing.
absl::Status CheckNumberedSets(const std::vector<std::string>& names) {
  std::map<std::string, std::set<int64_t>> sets;
  std::map<std::string, int64_t> counts;
  for (const std::string& name : names) {
    const std::optional<PartName> part = ParsePartName(name);
    if (!part.has_value()) continue;
    sets[part->set].insert(part->number);
    counts[part->set] = part->count;
  }
  for (const auto& [set, numbers] : sets) {
    for (int64_t number = 1; number <= counts[set]; ++number) {
      if (numbers.contains(number)) continue;
      return absl::InvalidArgumentError(absl::StrCat(set, ": part ", number, " of ", counts[set],
                                                     " of the model is missing, and so is ", kIndex));
    }
  }
  return absl::OkStatus();
}

// The names of a directory's files that end in .safetensors, in upper or lower case, sorted.
absl::StatusOr<std::vector<std::string>> ListFiles(const std::string& directory) {
  std::vector<std::string> names, aside;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (!absl::EndsWithIgnoreCase(name, kEnding)) continue;
    const bool other = absl::StartsWith(name, "consolidated") || absl::StartsWith(name, "adapter_");
    (other ? aside : names).push_back(std::move(name));
    if (names.size() + aside.size() > kMaxFiles)
      return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxFiles, " files end in ", kEnding));
  }
  if (error) return absl::ErrnoToStatus(error.value(), "cannot list the directory");
  if (names.empty()) names = std::move(aside);
  std::sort(names.begin(), names.end());
  if (names.empty()) {
    return absl::NotFoundError(
        "no .safetensors file is in the directory (weights in other formats, such as pytorch_model.bin, are "
        "not read)");
  }
  RETURN_IF_ERROR(CheckNumberedSets(names));
  return names;
}

absl::Status ReadAll(const std::string& directory, TensorTable* tensors) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFiles(directory));
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(absl::StrCat(directory, "/", name)));
    RETURN_IF_ERROR(ReadSafetensors(*file, nullptr, tensors));
    tensors->Keep(std::move(file));
  }
  return absl::OkStatus();
}

bool Exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

}  // namespace

absl::Status ReadSafetensorsDirectory(const std::string& directory, TensorTable* tensors) {
  auto single = MappedFile::Open(absl::StrCat(directory, "/", kSingle));
  if (single.ok()) {
    RETURN_IF_ERROR(ReadSafetensors(**single, nullptr, tensors));
    tensors->Keep(*std::move(single));
    return absl::OkStatus();
  }
  if (!absl::IsNotFound(single.status())) return single.status();
  auto index = MappedFile::Open(absl::StrCat(directory, "/", kIndex));
  if (index.ok()) return ReadShards(directory, **index, tensors);
  if (!absl::IsNotFound(index.status())) return index.status();
  return ReadAll(directory, tensors);
}

absl::StatusOr<std::vector<std::string>> SafetensorsFiles(const std::string& directory) {
  if (Exists(absl::StrCat(directory, "/", kSingle))) return std::vector<std::string>{kSingle};
  const auto index = MappedFile::Open(absl::StrCat(directory, "/", kIndex));
  if (absl::IsNotFound(index.status())) return ListFiles(directory);
  RETURN_IF_ERROR(index.status());
  ShardIndex map;
  RETURN_IF_ERROR(ParseIndex(**index, &map));
  std::vector<std::string> files = {kIndex};
  for (const auto& [shard, tensors] : map.shards) {
    RETURN_IF_ERROR(CheckShardName(shard));
    files.push_back(shard);
  }
  return files;
}

}  // namespace somnus
