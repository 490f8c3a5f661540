#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "checkpoint/json_reader.h"

namespace somnus {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr size_t kMaxDims = 8;

struct DtypeInfo {
  const char* name;
  int64_t bytes;
  std::optional<StorageType> type;  // empty: a valid type that no model computes with by itself
};

constexpr DtypeInfo kDtypes[] = {
    {"F32", 4, StorageType::kF32},
    {"F16", 2, StorageType::kF16},
    {"BF16", 2, StorageType::kBF16},
    {"F64", 8, {}},
    {"I64", 8, {}},
    {"U64", 8, {}},
    {"C64", 8, {}},
    {"I32", 4, {}},
    {"U32", 4, {}},
    {"I16", 2, {}},
    {"U16", 2, {}},
    {"I8", 1, {}},
    {"U8", 1, {}},
    {"BOOL", 1, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}},
};

// An entry of the header, as written there.
struct Entry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t begin = -1, end = -1;  // relative to the data part
};

bool ReadInts(JsonReader* json, size_t limit, std::vector<int64_t>* values) {
  values->clear();
  if (!json->BeginArray()) return false;
  while (json->NextElement()) {
    if (values->size() == limit) return json->Fail("too many numbers in a list");
    if (!json->ReadInt(&values->emplace_back())) return false;
  }
  return json->ok();
}

bool ReadEntry(JsonReader* json, Entry* entry) {
  std::string key;
  std::vector<int64_t> offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
  if (!json->BeginObject()) return false;
  while (json->NextKey(&key)) {
    bool* seen = key == "dtype" ? &has_dtype : key == "shape" ? &has_shape : &has_offsets;
    if (key != "dtype" && key != "shape" && key != "data_offsets") return json->Fail("unknown key " + key);
    if (std::exchange(*seen, true)) return json->Fail("key " + key + " twice");
    if (key == "dtype") {
      json->ReadString(&entry->dtype);
    } else {
      ReadInts(json, key == "shape" ? kMaxDims : 2, key == "shape" ? &entry->shape : &offsets);
    }
  }
  if (!json->ok()) return false;
  if (!has_dtype || !has_shape || offsets.size() != 2)
    return json->Fail("dtype, shape or data_offsets is missing");
  entry->begin = offsets[0];
  entry->end = offsets[1];
  return true;
}

absl::Status ParseHeader(const std::string& file, absl::string_view text, std::vector<Entry>* entries) {
  JsonReader json(text);
  std::string name;
  absl::flat_hash_set<std::string> names;
  json.BeginObject();
  while (json.NextKey(&name)) {
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": tensor ", name, " is there more than once"));
    }
    if (name == "__metadata__") {
      json.Skip();
      continue;
    }
    Entry& entry = entries->emplace_back();
    entry.name = name;
    if (!ReadEntry(&json, &entry)) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": header: tensor ", name, ": ", json.error()));
    }
  }
  if (!json.AtEnd() && json.ok()) json.Fail("something follows the header's object");
  if (!json.ok()) return absl::InvalidArgumentError(absl::StrCat(file, ": header: ", json.error()));
  return absl::OkStatus();
}

// Ok when dtype and shape ask for exactly the bytes that the offsets give, inside a data part of
// `data_bytes`.
absl::Status CheckEntry(const std::string& file, const Entry& entry, uint64_t data_bytes,
                        const DtypeInfo** dtype) {
  auto bad = [&](const auto&... reason) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": tensor ", entry.name, ": ", reason...));
  };
  const auto* found = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                   [&](const DtypeInfo& d) { return entry.dtype == d.name; });
  if (found == std::end(kDtypes)) return bad("unknown dtype ", entry.dtype);
  *dtype = found;
  if (entry.begin < 0 || entry.end < entry.begin) {
    return bad("data_offsets [", entry.begin, ", ", entry.end, "] are not a range");
  }
  if (static_cast<uint64_t>(entry.end) > data_bytes) {
    return bad("data ends at byte ", entry.end, " of ", data_bytes, " (is the file complete?)");
  }
  int64_t bytes = found->bytes;
  for (const int64_t dim : entry.shape) {
    if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes))
      return bad("bad shape ", ShapeString(entry.shape));
  }
  if (bytes != entry.end - entry.begin) {
    return bad(entry.dtype, " of shape ", ShapeString(entry.shape), " takes ", bytes,
               " bytes, data_offsets give ", entry.end - entry.begin);
  }
  return absl::OkStatus();
}

// Ok when the entries, sorted by offset, tile [0, data_bytes) without holes or overlaps.
absl::Status CheckTiling(const std::string& file, std::vector<const Entry*> entries, uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const Entry* a, const Entry* b) {
    return std::tie(a->begin, a->end) < std::tie(b->begin, b->end);
  });
  int64_t position = 0;
  for (const Entry* entry : entries) {
    if (entry->begin != position) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": tensor ", entry->name, ": data begins at byte ",
                                                     entry->begin, ", the one before ends at ", position,
                                                     entry->begin < position ? " (overlap)" : " (hole)"));
    }
    position = entry->end;
  }
  if (static_cast<uint64_t>(position) == data_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": ", data_bytes - position, " bytes follow the last tensor's data"));
}

absl::StatusOr<absl::string_view> HeaderText(const MappedFile& file) {
  uint64_t length = 0;
  if (file.size() < sizeof(length)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.name(), ": ", file.size(), " bytes are no safetensors file"));
  }
  std::memcpy(&length, file.data(), sizeof(length));  // little-endian, as all our machines are
  if (length > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(file.name(), ": header of ", length,
                                                   " bytes is longer than the limit of ", kMaxHeaderBytes));
  }
  if (length > file.size() - sizeof(length)) {
    return absl::InvalidArgumentError(absl::StrCat(file.name(), ": header of ", length,
                                                   " bytes does not fit the file of ", file.size(),
                                                   " bytes (is it complete?)"));
  }
  return file.text().substr(sizeof(length), length);
}

}  // namespace

std::string CanonicalName(const std::string& name) {
  absl::string_view inner = name;
  const auto strip = [&inner](const char* outer) { return absl::ConsumePrefix(&inner, outer); };
  while (strip("model.") || strip("language_model.") || strip("_orig_mod.") || strip("module.") ||
         strip("base_model.")) {
  }
  if (absl::StartsWith(inner, "lm_head.")) return std::string(inner);
  for (const char* part : {"decoder.", "layers.", "embed_tokens.", "norm."}) {
    if (absl::StartsWith(inner, part)) return absl::StrCat("model.", inner);
  }
  return name;
}

absl::Status ReadSafetensors(const MappedFile& file, const std::function<bool(const std::string&)>& wanted,
                             TensorTable* tensors) {
  ASSIGN_OR_RETURN(const absl::string_view header, HeaderText(file));
  const uint8_t* data = file.data() + sizeof(uint64_t) + header.size();
  const uint64_t data_bytes = file.size() - sizeof(uint64_t) - header.size();
  std::vector<Entry> entries;
  RETURN_IF_ERROR(ParseHeader(file.name(), header, &entries));
  std::vector<const Entry*> order;
  for (const Entry& entry : entries) {
    const DtypeInfo* dtype = nullptr;
    RETURN_IF_ERROR(CheckEntry(file.name(), entry, data_bytes, &dtype));
    order.push_back(&entry);
    if (wanted != nullptr && !wanted(entry.name)) continue;
    const std::string name = CanonicalName(entry.name);
    if (!dtype->type.has_value()) {
      RETURN_IF_ERROR(tensors->AddRaw({name, entry.dtype, entry.shape, data + entry.begin,
                                       static_cast<uint64_t>(entry.end - entry.begin), file.name(), &file}));
      continue;
    }
    TensorInfo tensor{name,
                      *dtype->type,
                      entry.shape,
                      data + entry.begin,
                      static_cast<uint64_t>(entry.end - entry.begin),
                      file.name()};
    tensor.source = &file;
    RETURN_IF_ERROR(tensors->Add(std::move(tensor)));
  }
  RETURN_IF_ERROR(CheckTiling(file.name(), std::move(order), data_bytes));
  return file.CheckWhole();
}

}  // namespace somnus
