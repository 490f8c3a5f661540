// Parses the container; every read is checked against the bytes that are left.

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/tensor_table.h"

namespace somnus {
namespace {

constexpr int kMaxArrayDepth = 4;
constexpr uint64_t kMaxNameBytes = 65535;  // of keys, by the format's definition; tensor names are shorter
constexpr uint32_t kMaxGgufDims = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;

std::optional<StorageType> StorageTypeOf(uint32_t ggml_type) {
  for (const StorageTypeInfo& info : kStorageTypeInfos) {
    if (info.ggml_type == ggml_type && ggml_type != kNoGgmlType) return info.type;
  }
  return std::nullopt;
}

}  // namespace

class GgufParser {
 public:
  explicit GgufParser(const MappedFile& file) : file_(file), text_(file.text()) {
    result_.name_ = file.name();
  }

  absl::StatusOr<GgufFile> Run() {
    RETURN_IF_ERROR(ParseHeader());
    for (uint64_t i = 0; i < num_keys_; ++i) RETURN_IF_ERROR(ParseKeyValue());
    for (uint64_t i = 0; i < num_tensors_; ++i) RETURN_IF_ERROR(ParseTensor());
    RETURN_IF_ERROR(PlaceTensors());
    return std::move(result_);
  }

 private:
  absl::Status Bad(absl::string_view reason) const {
    return absl::InvalidArgumentError(absl::StrCat(file_.name(), ": ", reason));
  }

  template <typename T>
  absl::Status Read(absl::string_view what, T* value) {
    if (text_.size() - pos_ < sizeof(T)) return Bad(absl::StrCat("the file ends inside ", what));
    std::memcpy(value, text_.data() + pos_, sizeof(T));
    pos_ += sizeof(T);
    return absl::OkStatus();
  }

  absl::Status ReadView(absl::string_view what, uint64_t bytes, absl::string_view* view) {
    if (bytes > text_.size() - pos_) {
      return Bad(absl::StrCat(what, ": ", bytes, " bytes, but the file has ", text_.size() - pos_, " left"));
    }
    *view = text_.substr(pos_, bytes);
    pos_ += bytes;
    return absl::OkStatus();
  }

  absl::Status ReadString(absl::string_view what, uint64_t limit, absl::string_view* view) {
    uint64_t length = 0;
    RETURN_IF_ERROR(Read(what, &length));
    if (length > limit)
      return Bad(absl::StrCat(what, ": a length of ", length, " is over the limit of ", limit));
    return ReadView(what, length, view);
  }

  absl::Status ParseHeader() {
    if (text_.substr(0, 4) != "GGUF") return Bad("not a GGUF file");
    pos_ = 4;
    uint32_t version = 0;
    RETURN_IF_ERROR(Read("the header", &version));
    if (version != 2 && version != 3) {
      const bool swapped = (version & 0xFFFF) == 0 && version != 0;
      return absl::UnimplementedError(absl::StrCat(
          file_.name(), ": GGUF ", swapped ? "in big-endian byte order" : absl::StrCat("version ", version),
          " is not supported"));
    }
    RETURN_IF_ERROR(Read("the header", &num_tensors_));
    RETURN_IF_ERROR(Read("the header", &num_keys_));
    // The smallest key-value pair takes 13 bytes, the smallest tensor description 24.
    const uint64_t left = text_.size() - pos_;
    if (num_keys_ > left / 13)
      return Bad(absl::StrCat("too short for the ", num_keys_, " metadata keys it announces"));
    if (num_tensors_ > left / 24)
      return Bad(absl::StrCat("too short for the ", num_tensors_, " tensors it announces"));
    return absl::OkStatus();
  }

  // Skips `count` elements, and checks that they are inside the file.
  absl::Status SkipElements(const std::string& what, GgufType type, uint64_t count, int depth) {
    const size_t scalar = GgufScalarBytes(type);
    absl::string_view ignored;
    if (scalar > 0) {
      if (count > (text_.size() - pos_) / scalar)
        return Bad(absl::StrCat(what, ": array of ", count, " does not fit the file"));
      return ReadView(what, count * scalar, &ignored);
    }
    if (type != GgufType::kString && type != GgufType::kArray) {
      return Bad(absl::StrCat(what, ": unknown type ", static_cast<uint32_t>(type)));
    }
    if (count > (text_.size() - pos_) / 8)
      return Bad(absl::StrCat(what, ": array of ", count, " does not fit the file"));
    if (type == GgufType::kArray && depth >= kMaxArrayDepth)
      return Bad(absl::StrCat(what, ": arrays nested too deeply"));
    for (uint64_t i = 0; i < count; ++i) {
      if (type == GgufType::kString) {
        RETURN_IF_ERROR(ReadString(what, text_.size(), &ignored));
      } else {
        GgufValue inner;
        RETURN_IF_ERROR(ParseArray(what, depth + 1, &inner));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ParseArray(const std::string& what, int depth, GgufValue* value) {
    uint32_t element_type = 0;
    RETURN_IF_ERROR(Read(what, &element_type));
    RETURN_IF_ERROR(Read(what, &value->count));
    value->element_type = static_cast<GgufType>(element_type);
    const uint64_t begin = pos_;
    RETURN_IF_ERROR(SkipElements(what, value->element_type, value->count, depth));
    value->bytes = text_.substr(begin, pos_ - begin);
    return absl::OkStatus();
  }

  absl::Status ParseKeyValue() {
    absl::string_view key;
    RETURN_IF_ERROR(ReadString("a metadata key", kMaxNameBytes, &key));
    if (!IsUtf8(key)) return Bad("a metadata key is not valid UTF-8");
    const std::string what = absl::StrCat("key ", key);
    uint32_t type = 0;
    RETURN_IF_ERROR(Read(what, &type));
    GgufValue value;
    value.type = static_cast<GgufType>(type);
    if (value.type == GgufType::kArray) {
      RETURN_IF_ERROR(ParseArray(what, 1, &value));
    } else if (value.type == GgufType::kString) {
      RETURN_IF_ERROR(ReadString(what, text_.size(), &value.bytes));
    } else if (const size_t bytes = GgufScalarBytes(value.type); bytes > 0) {
      RETURN_IF_ERROR(ReadView(what, bytes, &value.bytes));
    } else {
      return Bad(absl::StrCat(what, ": unknown type ", type));
    }
    if (!result_.metadata_.emplace(std::string(key), value).second)
      return Bad(what + " is there more than once");
    return absl::OkStatus();
  }

  absl::Status ParseTensor() {
    GgufTensor tensor;
    absl::string_view name;
    RETURN_IF_ERROR(ReadString("a tensor's name", kMaxNameBytes, &name));
    if (!IsUtf8(name)) return Bad("a tensor's name is not valid UTF-8");
    tensor.name = std::string(name);
    const std::string what = absl::StrCat("tensor ", name);
    uint32_t dims = 0;
    RETURN_IF_ERROR(Read(what, &dims));
    if (dims == 0 || dims > kMaxGgufDims) return Bad(absl::StrCat(what, ": ", dims, " dimensions"));
    tensor.shape.resize(dims);
    for (uint32_t i = 0; i < dims; ++i) RETURN_IF_ERROR(Read(what, &tensor.shape[dims - 1 - i]));
    RETURN_IF_ERROR(Read(what, &tensor.ggml_type));
    RETURN_IF_ERROR(Read(what, &tensor.offset));
    tensor.type = StorageTypeOf(tensor.ggml_type);
    RETURN_IF_ERROR(SizeTensor(&tensor));
    result_.tensors_.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  // Computes the bytes of a tensor from its type and shape.
  absl::Status SizeTensor(GgufTensor* tensor) const {
    int64_t elements = 1;
    for (const int64_t dim : tensor->shape) {
      if (dim <= 0 || __builtin_mul_overflow(elements, dim, &elements)) {
        return Bad(absl::StrCat("tensor ", tensor->name, ": bad shape ", ShapeString(tensor->shape)));
      }
    }
    if (!tensor->type.has_value()) return absl::OkStatus();
    const BlockSize block = BlockSizeOf(*tensor->type);
    if (tensor->shape.back() % block.elements != 0) {
      return Bad(absl::StrCat("tensor ", tensor->name, ": rows of ", tensor->shape.back(), " are not whole ",
                              StorageTypeName(*tensor->type), " blocks of ", block.elements));
    }
    int64_t bytes = 0;
    if (__builtin_mul_overflow(elements / block.elements, block.bytes, &bytes)) {
      return Bad(absl::StrCat("tensor ", tensor->name, ": bad shape ", ShapeString(tensor->shape)));
    }
    tensor->bytes = static_cast<uint64_t>(bytes);
    return absl::OkStatus();
  }

  // Makes offsets absolute and checks that the tensors are inside the file, aligned, and do not overlap.
  absl::Status PlaceTensors() {
    ASSIGN_OR_RETURN(const int64_t alignment, result_.Int("general.alignment", kDefaultAlignment));
    if (alignment <= 0 || alignment > static_cast<int64_t>(kMaxAlignment) ||
        !std::has_single_bit(static_cast<uint64_t>(alignment))) {
      return Bad(absl::StrCat("key general.alignment: ", alignment, " is not a power of two in range"));
    }
    const uint64_t align = static_cast<uint64_t>(alignment);
    const uint64_t data = (pos_ + align - 1) / align * align;
    std::vector<const GgufTensor*> order;
    for (GgufTensor& tensor : result_.tensors_) {
      if (tensor.offset % align != 0)
        return Bad(absl::StrCat("tensor ", tensor.name, ": offset ", tensor.offset, " is not aligned"));
      const uint64_t room = text_.size() > data ? text_.size() - data : 0;
      if (tensor.offset > room || tensor.bytes > room - tensor.offset) {
        return Bad(absl::StrFormat(
            "tensor %s: %d bytes at offset %d do not fit the %d bytes of data (is the file complete?)",
            tensor.name, tensor.bytes, tensor.offset, room));
      }
      tensor.offset += data;
      if (tensor.bytes > 0) order.push_back(&tensor);
    }
    std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < order.size(); ++i) {
      if (order[i]->offset - order[i - 1]->offset < order[i - 1]->bytes) {
        return Bad(
            absl::StrCat("tensor ", order[i]->name, ": its data overlaps that of ", order[i - 1]->name));
      }
    }
    return absl::OkStatus();
  }

  const MappedFile& file_;
  absl::string_view text_;
  uint64_t pos_ = 0;
  uint64_t num_tensors_ = 0, num_keys_ = 0;
  GgufFile result_;
};

absl::StatusOr<GgufFile> GgufFile::Parse(const MappedFile& file) { return GgufParser(file).Run(); }

}  // namespace somnus
