// OPT (arXiv 2205.01068): learned positions, LayerNorm before each block (OPT-350m: after it), a two-matrix
// MLP, biases everywhere, and for OPT-350m an embedding narrower than the model.
#include <utility>

#include "base/status_macros.h"
#include "worker/model/decoder_model.h"

namespace somnus {
namespace {

UnaryActivation OpOf(Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return UnaryActivation::kGelu;
    case Activation::kGeluTanh:
      return UnaryActivation::kGeluTanh;
    default:
      return UnaryActivation::kRelu;
  }
}

class OptModel : public DecoderModel {
 public:
  explicit OptModel(const ModelContext* context) : DecoderModel(context) {}

  absl::StatusOr<TensorView> Forward(const StepInput& input) override {
    RETURN_IF_ERROR(EmbedTokensAndPositions(input));
    return Project(c_.config->norm_before ? RunPreNorm(input) : RunPostNorm(input));
  }

 private:
  // residual (f32 [T, hidden]) = embeddings, projected to the model's width, + positions.
  absl::Status EmbedTokensAndPositions(const StepInput& input) {
    const int64_t num_tokens = input.batch.num_tokens;
    const TensorView x = FirstRows(c_.act.residual, num_tokens);
    if (c_.weights->project_in.n == 0) {
      RETURN_IF_ERROR(Embed(input, x));
    } else {
      const TensorView embedded = FirstRows(c_.act.embedded, num_tokens);          // f32 [T, embedding_dim]
      const TensorView embedded_act = FirstRows(c_.act.embedded_act, num_tokens);  // act [T, embedding_dim]
      RETURN_IF_ERROR(Embed(input, embedded));
      Activate(*c_.device, embedded, UnaryActivation::kIdentity, embedded_act);
      Linear(*c_.device, embedded_act, c_.weights->project_in, nullptr, x);
    }
    const int64_t rows = c_.config->max_position_embeddings + c_.config->position_offset;
    const TensorView table = {const_cast<float*>(c_.weights->position_table), DataType::kF32, rows, x.cols,
                              x.cols};
    AddPositionEmbedding(*c_.device, input.batch.positions, table, c_.config->position_offset, x);
    return absl::OkStatus();
  }

  // x += Attention(LN(x)); x += MLP(LN(x)); at the end LN(x).
  absl::StatusOr<TensorView> RunPreNorm(const StepInput& input) {
    const int64_t num_tokens = input.batch.num_tokens;
    const TensorView x = FirstRows(c_.act.residual, num_tokens);
    const TensorView delta = FirstRows(c_.act.delta, num_tokens);
    const TensorView normed = FirstRows(c_.act.normed, num_tokens);
    const double eps = c_.config->norm_eps;
    TensorView pending = {};
    for (size_t layer = 0; layer < c_.weights->layers.size(); ++layer) {
      const LayerWeights& w = c_.weights->layers[layer];
      AddLayerNorm(*c_.device, x, pending, w.attention_norm, w.attention_norm_bias, eps, normed);
      Attention(static_cast<int64_t>(layer), input, normed, delta);
      RETURN_IF_ERROR(AllReduce(delta));
      AddLayerNorm(*c_.device, x, delta, w.mlp_norm, w.mlp_norm_bias, eps, normed);
      RETURN_IF_ERROR(Mlp(w, input, normed, delta));
      pending = delta;
    }
    if (c_.weights->final_norm != nullptr) {
      AddLayerNorm(*c_.device, x, pending, c_.weights->final_norm, c_.weights->final_norm_bias, eps, normed);
    } else {
      Add(*c_.device, x, pending);
      Activate(*c_.device, x, UnaryActivation::kIdentity, normed);
    }
    return normed;
  }

  // x = LN(x + Attention(x)); x = LN(x + MLP(x)): the stream itself is normalized, so it moves between two
  // buffers.
  absl::StatusOr<TensorView> RunPostNorm(const StepInput& input) {
    const int64_t num_tokens = input.batch.num_tokens;
    TensorView x = FirstRows(c_.act.residual, num_tokens);
    TensorView next = FirstRows(c_.act.residual2, num_tokens);
    const TensorView delta = FirstRows(c_.act.delta, num_tokens);
    const TensorView x_act = FirstRows(c_.act.normed, num_tokens);
    const double eps = c_.config->norm_eps;
    Activate(*c_.device, x, UnaryActivation::kIdentity, x_act);
    for (size_t layer = 0; layer < c_.weights->layers.size(); ++layer) {
      const LayerWeights& w = c_.weights->layers[layer];
      Attention(static_cast<int64_t>(layer), input, x_act, delta);
      RETURN_IF_ERROR(AllReduce(delta));
      AddLayerNorm(*c_.device, x, delta, w.attention_norm, w.attention_norm_bias, eps, next);
      std::swap(x, next);
      Activate(*c_.device, x, UnaryActivation::kIdentity, x_act);
      RETURN_IF_ERROR(Mlp(w, input, x_act, delta));
      AddLayerNorm(*c_.device, x, delta, w.mlp_norm, w.mlp_norm_bias, eps, next);
      std::swap(x, next);
      Activate(*c_.device, x, UnaryActivation::kIdentity, x_act);
    }
    return x_act;
  }

  absl::Status Mlp(const LayerWeights& w, const StepInput& input, const TensorView& normed,
                   const TensorView& delta) {
    const TensorView up = FirstRows(c_.act.up, input.batch.num_tokens);       // sum [T, M]
    const TensorView hidden = FirstRows(c_.act.mlp, input.batch.num_tokens);  // act [T, M]
    if (w.up.n > 0) {
      Linear(*c_.device, normed, w.up, w.up_bias, up);
      Activate(*c_.device, up, OpOf(c_.config->activation), hidden);
    }
    RowParallel(hidden, w.down, w.down_bias, delta);
    return AllReduce(delta);
  }

  // act [T, hidden] -> act [T, embedding_dim]
  absl::StatusOr<TensorView> Project(absl::StatusOr<TensorView> hidden) {
    if (!hidden.ok() || c_.weights->project_out.n == 0) return hidden;
    const TensorView embedded = FirstRows(c_.act.embedded, hidden->rows);
    const TensorView embedded_act = FirstRows(c_.act.embedded_act, hidden->rows);
    Linear(*c_.device, *hidden, c_.weights->project_out, nullptr, embedded);
    Activate(*c_.device, embedded, UnaryActivation::kIdentity, embedded_act);
    return embedded_act;
  }
};

}  // namespace

std::unique_ptr<DecoderModel> MakeOptModel(const ModelContext* context) {
  return std::make_unique<OptModel>(context);
}

}  // namespace somnus
