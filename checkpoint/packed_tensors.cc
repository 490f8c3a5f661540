#include "checkpoint/packed_tensors.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "checkpoint/packed_weight.h"
#include "checkpoint/storage_type.h"

namespace somnus {
namespace {

using Method = QuantizationConfig::Method;
using Order = PackedInts::Order;

constexpr int64_t kBlockCols = 32, kWordBytes = 4;
constexpr std::initializer_list<const char*> kFloats = {"F16", "BF16", "F32"};

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

absl::Status Bad(const RawTensor& tensor, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(tensor.file, ": tensor ", tensor.name, " ", what));
}

// Puts one matrix together: [rows, cols] by canonical name, from the parts that begin with the matrix's
// prefix.
class PackedTensorBuilder {
 public:
  PackedTensorBuilder(const QuantizationConfig& config, const TensorTable& tensors, const std::string& name,
                      const std::vector<int64_t>& shape)
      : config_(config),
        tensors_(tensors),
        prefix_(absl::StripSuffix(name, "weight")),
        name_(name),
        rows_(shape[0]),
        cols_(shape[1]) {}

  // Nothing where the matrix has no parts.
  absl::StatusOr<std::optional<TensorInfo>> Build() && {
    switch (config_.method) {
      case Method::kGptq:
      case Method::kAwq:
        if (!HasPart("qweight")) return std::nullopt;
        RETURN_IF_ERROR(ReadInputsFirst(config_.method == Method::kAwq));
        break;
      default:
        if (HasPart("weight_packed")) {
          RETURN_IF_ERROR(ReadPacked());
        } else if (!HasRaw("weight")) {
          return std::nullopt;
        } else {
          RETURN_IF_ERROR(ReadBytes());
        }
    }
    return Finish();
  }

 private:
  std::string NameOf(const char* part) const { return absl::StrCat(prefix_, part); }
  bool HasRaw(const char* part) const { return tensors_.FindRaw(NameOf(part)) != nullptr; }
  bool HasPart(const char* part) const { return tensors_.Has(NameOf(part)); }

  // A part with a type out of `types`, of any shape. The part's map becomes a map of the matrix.
  absl::StatusOr<RawTensor> Take(const char* part, std::initializer_list<const char*> types) {
    RawTensor tensor;
    const std::string name = NameOf(part);
    if (const RawTensor* raw = tensors_.FindRaw(name); raw != nullptr) {
      tensor = *raw;
    } else if (const TensorInfo* plain = tensors_.Find(name); plain != nullptr) {
      tensor = {
          name,         StorageTypeName(plain->type), plain->shape, plain->data, plain->bytes, plain->file,
          plain->source};
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", name, " is missing from the checkpoint, and others of ", name_, " are there"));
    }
    const bool known =
        std::any_of(types.begin(), types.end(), [&](const char* type) { return tensor.dtype == type; });
    if (!known)
      return Bad(tensor, absl::StrCat("has type ", tensor.dtype, ", not ", absl::StrJoin(types, " or ")));
    if (std::find(weight_->sources.begin(), weight_->sources.end(), tensor.source) == weight_->sources.end())
      weight_->sources.push_back(tensor.source);
    return tensor;
  }

  absl::StatusOr<RawTensor> Take(const char* part, std::initializer_list<const char*> types,
                                 const std::vector<int64_t>& shape) {
    ASSIGN_OR_RETURN(RawTensor tensor, Take(part, types));
    if (tensor.shape == shape) return tensor;
    return Bad(tensor,
               absl::StrCat("has shape ", ShapeString(tensor.shape), ", and for ", name_, " of shape ",
                            ShapeString({rows_, cols_}), " it should be ", ShapeString(shape)));
  }

  void SetScales(const RawTensor& scales, int64_t row_stride, int64_t group_stride) {
    weight_->scales = scales.data;
    weight_->scale_type = scales.dtype == "F32"   ? StorageType::kF32
                          : scales.dtype == "F16" ? StorageType::kF16
                                                  : StorageType::kBF16;
    weight_->row_stride = row_stride;
    weight_->group_stride = group_stride;
  }

  void SetNumbers(const RawTensor& numbers, Order order, int64_t stride) {
    weight_->numbers = {numbers.data, order, bits_, stride};
    main_ = numbers;
  }

  absl::Status CheckDivides(int64_t per_word, int64_t size, const char* what) const {
    if (size % per_word == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("tensor ", name_, " of shape ",
                                                   ShapeString({rows_, cols_}), " has ", what,
                                                   " that words of ", per_word, " numbers do not divide"));
  }

  // GPTQ: qweight [cols / per word, rows], AWQ: [cols, rows / per word], of int32; qzeros [groups, rows / per
  // word], int32; scales [groups, rows]; of GPTQ g_idx [cols], int32, which may be missing.
  absl::Status ReadInputsFirst(bool awq) {
    bits_ = config_.bits;
    const int64_t per_word = 32 / bits_;
    RETURN_IF_ERROR(CheckDivides(per_word, rows_, "outputs"));
    if (!awq) RETURN_IF_ERROR(CheckDivides(per_word, cols_, "inputs"));
    SetGroups(config_.group_size < 0 ? cols_ : config_.group_size);
    const std::vector<int64_t> shape =
        awq ? std::vector<int64_t>{cols_, rows_ / per_word} : std::vector<int64_t>{cols_ / per_word, rows_};
    ASSIGN_OR_RETURN(const RawTensor numbers, Take("qweight", {"I32"}, shape));
    ASSIGN_OR_RETURN(const RawTensor zeros, Take("qzeros", {"I32"}, {groups_, rows_ / per_word}));
    ASSIGN_OR_RETURN(const RawTensor scales, Take("scales", kFloats, {groups_, rows_}));
    SetNumbers(numbers, awq ? Order::kAwq : Order::kAlongColumn, shape[1] * kWordBytes);
    SetScales(scales, /*row_stride=*/1, /*group_stride=*/rows_);
    weight_->transposed = true;
    weight_->zeros =
        PackedInts{zeros.data, awq ? Order::kAwq : Order::kAlongRow, bits_, rows_ / per_word * kWordBytes};
    weight_->zero = config_.zeros_less_1 ? 1 : 0;
    symmetric_ = config_.symmetric;
    return awq ? absl::OkStatus() : ReadOrder("g_idx");
  }

  void SetGroups(int64_t group_size) {
    weight_->group_size = group_size;
    groups_ = CeilDiv(cols_, group_size);
  }

  // Keeps the groups of inputs where groups do not simply follow each other.
  absl::Status ReadOrder(const char* part) {
    if (!HasPart(part)) return absl::OkStatus();
    ASSIGN_OR_RETURN(const RawTensor order, Take(part, {"I32"}, {cols_}));
    std::vector<int32_t> groups(static_cast<size_t>(cols_));
    std::memcpy(groups.data(), order.data, static_cast<size_t>(cols_) * sizeof(int32_t));
    RETURN_IF_ERROR(order.source->CheckWhole());
    bool sorted = true;
    for (int64_t col = 0; col < cols_; ++col) {
      const int32_t group = groups[static_cast<size_t>(col)];
      if (group < 0 || group >= groups_) {
        return Bad(order, absl::StrCat("puts input ", col, " into group ", group, " of ", groups_));
      }
      sorted = sorted && group == col / weight_->group_size;
    }
    if (!sorted) weight_->group_of_col = std::move(groups);
    return absl::OkStatus();
  }

  // weight_packed [rows, cols / per word], int32; weight_scale [rows, groups]; weight_zero_point, which may
  // be missing, [rows / per word, groups], int32, or [rows, groups], int8; weight_g_idx [cols], int32, which
  // may be missing, too.
  absl::Status ReadPacked() {
    ASSIGN_OR_RETURN(const RawTensor numbers, Take("weight_packed", {"I32"}));
    bits_ = config_.bits;
    if (bits_ == 0 && numbers.shape.size() == 2) bits_ = CeilDiv(cols_, 8) == numbers.shape[1] ? 4 : 8;
    if (bits_ == 0) bits_ = 4;
    const int64_t words = CeilDiv(cols_, 32 / bits_);
    RETURN_IF_ERROR(Take("weight_packed", {"I32"}, {rows_, words}).status());
    SetNumbers(numbers, Order::kAlongRow, words * kWordBytes);
    RETURN_IF_ERROR(ReadScalesOfRows("weight_scale"));
    weight_->zero = 1 << (bits_ - 1);
    RETURN_IF_ERROR(ReadZeroPoints());
    return ReadOrder("weight_g_idx");
  }

  // weight [rows, cols], bytes or fp8, and weight_scale, or, of fp8 in blocks, weight_scale_inv.
  absl::Status ReadBytes() {
    bits_ = 8;
    ASSIGN_OR_RETURN(const RawTensor numbers, Take("weight", {"I8", "F8_E4M3"}, {rows_, cols_}));
    SetNumbers(numbers, Order::kAlongRow, cols_);
    weight_->float8 = numbers.dtype == "F8_E4M3";
    RETURN_IF_ERROR(ReadScalesOfRows(HasPart("weight_scale_inv") ? "weight_scale_inv" : "weight_scale"));
    if (weight_->float8) return absl::OkStatus();
    weight_->flip = 0x80;
    weight_->zero = 128;
    return ReadZeroPoints();
  }

  // A scale for all, for each row, for each row and group, or, with fp8, for each block.
  absl::Status ReadScalesOfRows(const char* part) {
    ASSIGN_OR_RETURN(const RawTensor scales, Take(part, kFloats));
    std::vector<int64_t> shape = scales.shape;
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    SetGroups(cols_);
    if (count == 1 && shape.size() <= 2) {
      SetScales(scales, 0, 0);
      return absl::OkStatus();
    }
    if (shape.size() == 1) shape.push_back(1);
    if (IsOfBlocks(shape)) {
      SetGroups(config_.group_size);
      weight_->block_rows = config_.block_rows;
      SetScales(scales, groups_, 1);
      return absl::OkStatus();
    }
    if (shape.size() == 2 && shape[0] == rows_ && shape[1] >= 1 && shape[1] <= cols_) {
      const bool sized = shape[1] > 1 && config_.group_size > 0 && config_.block_rows == 0;
      SetGroups(sized ? config_.group_size : CeilDiv(cols_, shape[1]));
      SetScales(scales, shape[1], 1);
      if (groups_ == shape[1]) return absl::OkStatus();
    }
    return Bad(scales, absl::StrCat("has shape ", ShapeString(scales.shape), ", which are no scales for ",
                                    name_, " of shape ", ShapeString({rows_, cols_})));
  }

  // Whether scales of this shape belong to blocks of fp8.
  bool IsOfBlocks(const std::vector<int64_t>& shape) const {
    return weight_->float8 && config_.block_rows > 0 && config_.group_size > 0 &&
           shape ==
               std::vector<int64_t>{CeilDiv(rows_, config_.block_rows), CeilDiv(cols_, config_.group_size)};
  }

  absl::Status ReadZeroPoints() {
    constexpr char kPart[] = "weight_zero_point";
    // Some writers store the zeros of symmetric weights, too.
    const bool all_zero = config_.bits != 0 && config_.symmetric;
    if (all_zero || !HasPart(kPart)) return absl::OkStatus();
    symmetric_ = false;
    ASSIGN_OR_RETURN(const RawTensor zeros, Take(kPart, {"I32", "I8"}));
    if (zeros.dtype == "I32") {  // packed like the numbers, along the rows of the matrix
      RETURN_IF_ERROR(Take(kPart, {"I32"}, {CeilDiv(rows_, 32 / bits_), groups_}).status());
      weight_->zeros = PackedInts{zeros.data, Order::kAlongColumn, bits_, groups_ * kWordBytes};
      weight_->zero = 0;
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(Take(kPart, {"I8"}, {rows_, groups_}).status());
    weight_->zeros = PackedInts{zeros.data, Order::kAlongRow, 8, groups_};
    weight_->zero_flip = 0x80;
    weight_->zero -= 128;  // a signed number, which the flip has turned into a number from 0 to 255
    return absl::OkStatus();
  }

  // Whether each row has a single scale, or blocks of multiples of 32 rows have scales.
  bool HasF8Blocks() const { return groups_ == 1 || weight_->block_rows % kBlockCols == 0; }

  StorageType BlockType() const {
    const bool whole = weight_->group_of_col.empty() && cols_ % kBlockCols == 0 &&
                       (weight_->group_size % kBlockCols == 0 || groups_ == 1);
    if (!whole) return StorageType::kF32;
    if (weight_->float8) return HasF8Blocks() ? StorageType::kF8E4M3 : StorageType::kF32;
    if (bits_ == 8) return symmetric_ ? StorageType::kQ8_0 : StorageType::kF32;
    return symmetric_ ? StorageType::kQ4_0 : StorageType::kQ4_1;
  }

  TensorInfo Finish() {
    TensorInfo tensor{name_, BlockType(), {rows_, cols_}, main_.data, main_.bytes, main_.file};
    tensor.source = main_.source;
    tensor.scaled_by_blocks = tensor.type == StorageType::kF8E4M3 && groups_ > 1;
    tensor.packed = std::move(weight_);
    return tensor;
  }

  const QuantizationConfig& config_;
  const TensorTable& tensors_;
  const std::string prefix_, name_;
  const int64_t rows_, cols_;
  int bits_ = 0;
  int64_t groups_ = 1;
  bool symmetric_ = true;
  RawTensor main_;
  std::shared_ptr<PackedWeight> weight_ = std::make_shared<PackedWeight>();
};

}  // namespace

absl::StatusOr<std::optional<TensorInfo>> MakePackedTensor(const QuantizationConfig& config,
                                                           const TensorTable& tensors,
                                                           const std::string& name,
                                                           const std::vector<int64_t>& shape) {
  if (config.method == Method::kNone) return std::nullopt;
  return PackedTensorBuilder(config, tensors, name, shape).Build();
}

absl::Status AddPackedTensors(const ModelConfig& config, TensorTable* tensors) {
  if (config.quantization.method == Method::kNone) return absl::OkStatus();
  ModelConfig untied = config;  // a head of its own may be stored all the same
  untied.tie_word_embeddings = false;
  return ForEachTensor(
      untied, [&](const std::string& name, const std::vector<int64_t>& shape) -> absl::Status {
        if (shape.size() != 2 || tensors->Find(name) != nullptr) return absl::OkStatus();
        ASSIGN_OR_RETURN(std::optional<TensorInfo> tensor,
                         MakePackedTensor(config.quantization, *tensors, name, shape));
        return tensor.has_value() ? tensors->AddPacked(*std::move(tensor)) : absl::OkStatus();
      });
}

}  // namespace somnus
