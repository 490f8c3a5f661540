// Which tensors each architecture needs, by Hugging Face's names, and where each goes.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "worker/model/weights.h"

namespace somnus {
namespace {

constexpr int64_t kAlignment = 256;  // what a GPU's matrix products like best

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

Range Whole(int64_t n) { return {0, n}; }
Range Scaled(Range range, int64_t factor) { return {range.begin * factor, range.end * factor}; }

}  // namespace

// Collects the plan; the first missing or misshapen tensor is kept as the status, and the rest is still
// walked.
class WeightPlanBuilder {
 public:
  WeightPlanBuilder(const Checkpoint& checkpoint, const ModelShards& shards, DataType dtype,
                    const Device& device)
      : checkpoint_(checkpoint),
        config_(checkpoint.config()),
        shards_(shards),
        dtype_(dtype),
        device_(device) {
    plan_.weights_ = std::make_unique<ModelWeights>();
    plan_.weights_->layers.resize(config_.num_layers);
  }

  absl::StatusOr<WeightPlan> Build() && {
    if (config_.architecture == Architecture::kOpt) {
      AddOpt();
    } else {
      AddLlama();
    }
    RETURN_IF_ERROR(status_);
    return std::move(plan_);
  }

 private:
  // The tensor of that name and shape, or nullptr and status_.
  const TensorInfo* Expect(const std::string& name, const std::vector<int64_t>& shape) {
    const TensorInfo* tensor = checkpoint_.Find(name);
    if (tensor == nullptr) {
      Fail(absl::NotFoundError(
          absl::StrCat("tensor ", name, " of shape ", ShapeText(shape), " is missing in ", config_.name)));
    } else if (tensor->shape != shape) {
      Fail(absl::InvalidArgumentError(absl::StrCat("tensor ", name, " has shape ", ShapeText(tensor->shape),
                                                   " in ", tensor->file, ", but the config asks for ",
                                                   ShapeText(shape))));
    }
    return tensor;
  }

  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  WeightSource MatrixSource(const std::string& name, int64_t rows, int64_t cols, Range row_range,
                            Range col_range) {
    return {Expect(name, {rows, cols}), row_range, col_range};
  }
  WeightSource VectorSource(const std::string& name, int64_t size, Range range) {
    return {Expect(name, {size}), range, Whole(1)};
  }

  int64_t Reserve(int64_t bytes) {
    const int64_t offset = plan_.region_bytes_;
    plan_.region_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }

  void AddMatrix(LinearWeight* target, std::vector<WeightSource> sources) {
    target->dtype = dtype_;
    target->k = sources[0].cols.size();
    for (const WeightSource& source : sources) target->n += source.rows.size();
    if (target->n == 0 || target->k == 0) return;
    plan_.matrices_.push_back(
        {target, Reserve(PackedWeightBytes(device_, dtype_, target->n, target->k)), std::move(sources)});
  }

  void AddVector(const float** target, std::vector<WeightSource> sources) {
    int64_t count = 0;
    for (const WeightSource& source : sources) count += source.rows.size() * source.cols.size();
    if (count > 0) plan_.vectors_.push_back({target, Reserve(count * 4), std::move(sources)});
  }

  void AddNorm(const float** target, const std::string& name, int64_t size) {
    AddVector(target, {VectorSource(name, size, Whole(size))});
  }

  // q, k and v in one matrix: this rank's heads of each.
  void AddQkv(LayerWeights* layer, const std::string& prefix) {
    const int64_t q_rows = static_cast<int64_t>(config_.num_heads) * config_.head_dim;
    const int64_t kv_rows = static_cast<int64_t>(config_.num_kv_heads) * config_.head_dim;
    const Range q = Scaled(shards_.heads, config_.head_dim);
    const Range kv = Scaled(shards_.kv_heads, config_.head_dim);
    const Range in = Whole(config_.hidden_size);
    AddMatrix(&layer->qkv, {MatrixSource(prefix + "q_proj.weight", q_rows, config_.hidden_size, q, in),
                            MatrixSource(prefix + "k_proj.weight", kv_rows, config_.hidden_size, kv, in),
                            MatrixSource(prefix + "v_proj.weight", kv_rows, config_.hidden_size, kv, in)});
    if (!config_.attention_qkv_bias) return;
    AddVector(&layer->qkv_bias, {VectorSource(prefix + "q_proj.bias", q_rows, q),
                                 VectorSource(prefix + "k_proj.bias", kv_rows, kv),
                                 VectorSource(prefix + "v_proj.bias", kv_rows, kv)});
  }

  // A row-parallel matrix [hidden, total_in]: this rank's columns, and the bias where it is added.
  void AddRowParallel(LinearWeight* weight, const float** bias, bool has_bias, const std::string& name,
                      int64_t total_in, Range in) {
    const int64_t hidden = config_.hidden_size;
    AddMatrix(weight, {MatrixSource(name + ".weight", hidden, total_in, Whole(hidden), in)});
    if (has_bias && shards_.last_rank()) AddNorm(bias, name + ".bias", hidden);
  }

  void AddEmbeddingAndHead(const std::string& embedding_name) {
    ModelWeights& weights = *plan_.weights_;
    const Range in = Whole(config_.embedding_dim);
    AddMatrix(&weights.embedding,
              {MatrixSource(embedding_name, config_.vocab_size, config_.embedding_dim, shards_.vocab, in)});
    plan_.tied_ = config_.tie_word_embeddings;
    if (plan_.tied_) return;
    AddMatrix(&weights.head,
              {MatrixSource("lm_head.weight", config_.vocab_size, config_.embedding_dim, shards_.vocab, in)});
  }

  void AddLlama() {
    AddEmbeddingAndHead("model.embed_tokens.weight");
    for (int32_t i = 0; i < config_.num_layers && status_.ok(); ++i) {
      AddLlamaLayer(&plan_.weights_->layers[i], absl::StrCat("model.layers.", i, "."));
    }
    AddNorm(&plan_.weights_->final_norm, "model.norm.weight", config_.hidden_size);
  }

  void AddLlamaLayer(LayerWeights* layer, const std::string& prefix) {
    const int64_t hidden = config_.hidden_size, mlp = config_.intermediate_size;
    AddNorm(&layer->attention_norm, prefix + "input_layernorm.weight", hidden);
    AddQkv(layer, prefix + "self_attn.");
    if (config_.qk_norm) {
      AddNorm(&layer->q_norm, prefix + "self_attn.q_norm.weight", config_.head_dim);
      AddNorm(&layer->k_norm, prefix + "self_attn.k_norm.weight", config_.head_dim);
    }
    AddRowParallel(&layer->out, &layer->out_bias, config_.attention_out_bias, prefix + "self_attn.o_proj",
                   static_cast<int64_t>(config_.num_heads) * config_.head_dim,
                   Scaled(shards_.heads, config_.head_dim));
    AddNorm(&layer->mlp_norm, prefix + "post_attention_layernorm.weight", hidden);
    AddMatrix(&layer->up,
              {MatrixSource(prefix + "mlp.gate_proj.weight", mlp, hidden, shards_.mlp, Whole(hidden)),
               MatrixSource(prefix + "mlp.up_proj.weight", mlp, hidden, shards_.mlp, Whole(hidden))});
    if (config_.mlp_bias) {
      AddVector(&layer->up_bias, {VectorSource(prefix + "mlp.gate_proj.bias", mlp, shards_.mlp),
                                  VectorSource(prefix + "mlp.up_proj.bias", mlp, shards_.mlp)});
    }
    AddRowParallel(&layer->down, &layer->down_bias, config_.mlp_bias, prefix + "mlp.down_proj", mlp,
                   shards_.mlp);
  }

  void AddOpt() {
    ModelWeights& weights = *plan_.weights_;
    const std::string prefix = "model.decoder.";
    const int64_t hidden = config_.hidden_size, embedding = config_.embedding_dim;
    const int64_t positions = static_cast<int64_t>(config_.max_position_embeddings) + config_.position_offset;
    AddEmbeddingAndHead(prefix + "embed_tokens.weight");
    AddVector(&weights.position_table, {MatrixSource(prefix + "embed_positions.weight", positions, hidden,
                                                     Whole(positions), Whole(hidden))});
    if (embedding != hidden) {
      AddMatrix(&weights.project_in, {MatrixSource(prefix + "project_in.weight", hidden, embedding,
                                                   Whole(hidden), Whole(embedding))});
      AddMatrix(&weights.project_out, {MatrixSource(prefix + "project_out.weight", embedding, hidden,
                                                    Whole(embedding), Whole(hidden))});
    }
    for (int32_t i = 0; i < config_.num_layers && status_.ok(); ++i) {
      AddOptLayer(&weights.layers[i], absl::StrCat(prefix, "layers.", i, "."));
    }
    if (!config_.norm_before || !config_.final_norm) return;
    AddNorm(&weights.final_norm, prefix + "final_layer_norm.weight", hidden);
    AddNorm(&weights.final_norm_bias, prefix + "final_layer_norm.bias", hidden);
  }

  void AddOptLayer(LayerWeights* layer, const std::string& prefix) {
    const int64_t hidden = config_.hidden_size, mlp = config_.intermediate_size;
    AddNorm(&layer->attention_norm, prefix + "self_attn_layer_norm.weight", hidden);
    AddNorm(&layer->attention_norm_bias, prefix + "self_attn_layer_norm.bias", hidden);
    AddQkv(layer, prefix + "self_attn.");
    AddRowParallel(&layer->out, &layer->out_bias, config_.attention_out_bias, prefix + "self_attn.out_proj",
                   static_cast<int64_t>(config_.num_heads) * config_.head_dim,
                   Scaled(shards_.heads, config_.head_dim));
    AddNorm(&layer->mlp_norm, prefix + "final_layer_norm.weight", hidden);
    AddNorm(&layer->mlp_norm_bias, prefix + "final_layer_norm.bias", hidden);
    AddMatrix(&layer->up, {MatrixSource(prefix + "fc1.weight", mlp, hidden, shards_.mlp, Whole(hidden))});
    if (config_.mlp_bias) AddVector(&layer->up_bias, {VectorSource(prefix + "fc1.bias", mlp, shards_.mlp)});
    AddRowParallel(&layer->down, &layer->down_bias, config_.mlp_bias, prefix + "fc2", mlp, shards_.mlp);
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const ModelShards& shards_;
  const DataType dtype_;
  const Device& device_;
  WeightPlan plan_;
  absl::Status status_;
};

absl::StatusOr<WeightPlan> WeightPlan::Create(const Checkpoint& checkpoint, const ModelShards& shards,
                                              DataType dtype, const Device& device) {
  return WeightPlanBuilder(checkpoint, shards, dtype, device).Build();
}

void WeightPlan::Bind(void* base) {
  uint8_t* bytes = static_cast<uint8_t*>(base);
  for (const Matrix& matrix : matrices_) matrix.target->data = bytes + matrix.offset;
  for (const Vector& vector : vectors_)
    *vector.target = reinterpret_cast<const float*>(bytes + vector.offset);
  if (tied_) weights_->head = weights_->embedding;
}

}  // namespace somnus
