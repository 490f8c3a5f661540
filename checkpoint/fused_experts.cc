#include "checkpoint/fused_experts.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "checkpoint/packed_weight.h"
#include "checkpoint/tensor_part.h"

namespace somnus {
namespace {

constexpr int64_t kMxfp4Block = 32;

// A tensor with the matrices of all experts of a layer.
struct Fused {
  std::string prefix;  // with the tensor's own name: "model.layers.0.mlp.experts."
  const char* name;
  std::vector<const char*> parts;  // the matrices whose rows alternate
  int64_t experts, rows, cols;     // of the alternating matrices together, for one expert
};

absl::StatusOr<RawTensor> TakeBytes(const TensorTable& tensors, const std::string& name,
                                    const std::vector<int64_t>& shape) {
  const RawTensor* tensor = tensors.FindRaw(name);
  if (tensor == nullptr) return absl::InvalidArgumentError(absl::StrCat("tensor ", name, " is missing"));
  if (tensor->dtype == "U8" && tensor->shape == shape) return *tensor;
  return absl::InvalidArgumentError(absl::StrCat(tensor->file, ": tensor ", name, " has type ", tensor->dtype,
                                                 " and shape ", ShapeString(tensor->shape), ", not U8 and ",
                                                 ShapeString(shape)));
}

// [experts * rows, cols], from the numbers and the exponents.
absl::StatusOr<TensorInfo> MakeMxfp4(const Fused& fused, const TensorTable& tensors) {
  const std::string name = fused.prefix + fused.name;
  if (fused.cols % kMxfp4Block != 0) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", name, "_blocks: ", fused.cols,
                                                   " inputs are not whole blocks of ", kMxfp4Block));
  }
  const int64_t groups = fused.cols / kMxfp4Block;
  ASSIGN_OR_RETURN(const RawTensor numbers, TakeBytes(tensors, name + "_blocks",
                                                      {fused.experts, fused.rows, groups, kMxfp4Block / 2}));
  ASSIGN_OR_RETURN(const RawTensor scales,
                   TakeBytes(tensors, name + "_scales", {fused.experts, fused.rows, groups}));
  auto weight = std::make_shared<PackedWeight>();
  weight->numbers = {numbers.data, PackedInts::Order::kAlongRow, 4, fused.cols / 2};
  weight->mxfp4 = true;
  weight->scales = scales.data;
  weight->row_stride = groups;
  weight->group_stride = 1;
  weight->group_size = kMxfp4Block;
  weight->sources = {numbers.source};
  if (scales.source != numbers.source) weight->sources.push_back(scales.source);
  TensorInfo whole{name,         StorageType::kMXFP4, {fused.experts * fused.rows, fused.cols},
                   numbers.data, numbers.bytes,       numbers.file};
  whole.source = numbers.source;
  whole.packed = std::move(weight);
  return whole;
}

// The tensor, of three dimensions (or two, of biases), as a matrix of `cols` columns.
absl::StatusOr<TensorInfo> MakePlain(const TensorTable& tensors, const std::string& name,
                                     const std::vector<int64_t>& shape, int64_t rows, int64_t cols) {
  RETURN_IF_ERROR(tensors.Expect(name, shape));
  TensorInfo whole = *tensors.Find(name);
  whole.shape = {rows, cols};
  return whole;
}

// Adds the parts of a tensor of all experts whose parts are whole rows.
absl::Status AddRows(const WholeTensor& whole, TensorTable* tensors) {
  if (!tensors->Has(whole.name)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const TensorInfo all,
                   MakePlain(*tensors, whole.name, whole.shape, whole.num_slices * whole.rows, whole.cols));
  const int64_t rows = whole.rows / static_cast<int64_t>(whole.parts.size());
  for (int64_t slice = 0; slice < whole.num_slices; ++slice) {
    for (const WholeTensor::Part& part : whole.parts) {
      TensorPart place = part.place;
      place.whole = all;
      place.first_row += slice * whole.rows;
      RETURN_IF_ERROR(
          tensors->Add(MakePartTensor(PartName(part, slice), {rows, whole.cols}, std::move(place))));
    }
  }
  return absl::OkStatus();
}

absl::Status AddMatrices(const Fused& fused, TensorTable* tensors) {
  const std::string name = fused.prefix + fused.name;
  const bool mxfp4 = tensors->Has(name + "_blocks");
  if (!mxfp4 && !tensors->Has(name)) return absl::OkStatus();
  absl::StatusOr<TensorInfo> whole = mxfp4
                                         ? MakeMxfp4(fused, *tensors)
                                         : MakePlain(*tensors, name, {fused.experts, fused.cols, fused.rows},
                                                     fused.experts * fused.cols, fused.rows);
  RETURN_IF_ERROR(whole.status());
  ASSIGN_OR_RETURN(const TensorInfo bias, MakePlain(*tensors, name + "_bias", {fused.experts, fused.rows},
                                                    fused.experts * fused.rows, 1));
  const auto step = static_cast<int64_t>(fused.parts.size());
  for (int64_t expert = 0; expert < fused.experts; ++expert) {
    for (int64_t i = 0; i < step; ++i) {
      const std::string part = absl::StrCat(fused.prefix, expert, ".", fused.parts[i]);
      const int64_t first_row = expert * fused.rows + i;
      TensorPart rows{.whole = *whole, .first_row = first_row, .row_step = step};
      TensorPart cols{.whole = *whole,
                      .transposed = true,
                      .first_row = expert * fused.cols,
                      .first_col = i,
                      .row_step = step};
      RETURN_IF_ERROR(tensors->Add(
          MakePartTensor(part + ".weight", {fused.rows / step, fused.cols}, mxfp4 ? rows : cols)));
      RETURN_IF_ERROR(tensors->Add(MakePartTensor(
          part + ".bias", {fused.rows / step}, {.whole = bias, .first_row = first_row, .row_step = step})));
    }
  }
  return absl::OkStatus();
}

// A tensor of all experts. `rows` and `cols` are of one expert's slice.
WholeTensor OfExperts(const std::string& prefix, const char* name, int64_t experts, int64_t rows,
                      int64_t cols) {
  return {.name = prefix + name,
          .shape = {experts, rows, cols},
          .num_slices = experts,
          .rows = rows,
          .cols = cols};
}

// The name of an expert's tensor of that role, with "*" for the expert's number.
std::string ExpertName(const ModelConfig& config, TensorRole role, int32_t layer, const char* suffix) {
  return absl::StrCat(config.family->layer_prefix, layer, ".", FindTensor(*config.family, role)->name,
                      suffix);
}

}  // namespace

std::vector<WholeTensor> FusedExperts(const ModelConfig& config, int32_t layer) {
  if (!config.HasExperts(layer)) return {};
  const int64_t experts = config.experts.num_experts, width = config.experts.expert_size;
  const int64_t hidden = config.hidden_size;
  const auto name = [&](TensorRole role, const char* suffix) {
    return ExpertName(config, role, layer, suffix);
  };
  const std::string gate = name(TensorRole::kExpertGate, ".weight");
  const std::string prefix = gate.substr(0, gate.find('*'));
  const std::string up = name(TensorRole::kExpertUp, ".weight");
  const std::string down = name(TensorRole::kExpertDown, ".weight");
  if (!config.family->fused_experts) {
    WholeTensor both = OfExperts(prefix, "gate_up_proj", experts, 2 * width, hidden);
    both.parts = {{gate, {}}, {up, {.first_row = width}}};
    WholeTensor out = OfExperts(prefix, "down_proj", experts, hidden, width);
    out.parts = {{down, {}}};
    return {both, out};
  }
  WholeTensor both = OfExperts(prefix, "gate_up_proj", experts, hidden, 2 * width);
  both.parts = {{gate, {.transposed = true, .row_step = 2}},
                {up, {.transposed = true, .first_col = 1, .row_step = 2}}};
  WholeTensor out = OfExperts(prefix, "down_proj", experts, width, hidden);
  out.parts = {{down, {.transposed = true}}};
  WholeTensor both_biases = OfExperts(prefix, "gate_up_proj_bias", experts, 2 * width, 1);
  both_biases.shape.pop_back();
  both_biases.parts = {{name(TensorRole::kExpertGate, ".bias"), {.row_step = 2}},
                       {name(TensorRole::kExpertUp, ".bias"), {.first_row = 1, .row_step = 2}}};
  WholeTensor out_bias = OfExperts(prefix, "down_proj_bias", experts, hidden, 1);
  out_bias.shape.pop_back();
  out_bias.parts = {{name(TensorRole::kExpertDown, ".bias"), {}}};
  return {both, out, both_biases, out_bias};
}

absl::Status AddFusedExperts(const ModelConfig& config, TensorTable* tensors) {
  const int64_t experts = config.experts.num_experts, width = config.experts.expert_size;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.family->fused_experts) {
      for (const WholeTensor& whole : FusedExperts(config, layer)) RETURN_IF_ERROR(AddRows(whole, tensors));
      continue;
    }
    const std::string prefix = absl::StrCat(config.family->layer_prefix, layer, ".mlp.experts.");
    RETURN_IF_ERROR(AddMatrices(
        {prefix, "gate_up_proj", {"gate_proj", "up_proj"}, experts, 2 * width, config.hidden_size}, tensors));
    RETURN_IF_ERROR(
        AddMatrices({prefix, "down_proj", {"down_proj"}, experts, config.hidden_size, width}, tensors));
  }
  return absl::OkStatus();
}

}  // namespace somnus
