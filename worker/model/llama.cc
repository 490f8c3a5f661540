// Llama and its kin (Llama 2, arXiv 2307.09288; Qwen2 adds biases to q, k, v; Qwen3 normalizes each head's q
// and k):
//   x += Attention(RMSNorm(x)); x += W_down(silu(W_gate(RMSNorm(x))) * W_up(RMSNorm(x))).
#include "base/status_macros.h"
#include "worker/model/decoder_model.h"

namespace somnus {
namespace {

class LlamaModel : public DecoderModel {
 public:
  explicit LlamaModel(const ModelContext* context) : DecoderModel(context) {}

  absl::StatusOr<TensorView> Forward(const StepInput& input) override {
    const int64_t num_tokens = input.batch.num_tokens;
    const TensorView x = FirstRows(c_.act.residual, num_tokens);     // f32 [T, hidden]
    const TensorView delta = FirstRows(c_.act.delta, num_tokens);    // sum [T, hidden]
    const TensorView normed = FirstRows(c_.act.normed, num_tokens);  // act [T, hidden]

    RETURN_IF_ERROR(Embed(input, x));
    TensorView pending = {};  // what the last block adds; nothing before the first
    for (size_t layer = 0; layer < c_.weights->layers.size(); ++layer) {
      const LayerWeights& w = c_.weights->layers[layer];
      RETURN_IF_ERROR(AddAndNorm(x, pending, w.attention_norm, normed));
      Attention(static_cast<int64_t>(layer), input, normed, delta);
      RETURN_IF_ERROR(AddAndNorm(x, delta, w.mlp_norm, normed));
      Mlp(w, input, normed, delta);
      pending = delta;
    }
    RETURN_IF_ERROR(AddAndNorm(x, pending, c_.weights->final_norm, normed));
    return normed;
  }

 private:
  // x += the ranks' addends (unless there are none); out = RMSNorm(x) * weight. One kernel where the ranks
  // have one for it.
  absl::Status AddAndNorm(const TensorView& x, const TensorView& addend, const float* weight,
                          const TensorView& out) {
    if (addend.data == nullptr) {
      AddRmsNorm(*c_.device, x, addend, weight, c_.config->norm_eps, out);
      return absl::OkStatus();
    }
    return c_.communicator->AllReduceAddRmsNorm(*c_.device, x, addend, weight, c_.config->norm_eps, out);
  }

  // delta (sum [T, hidden]): this rank's addend.
  void Mlp(const LayerWeights& w, const StepInput& input, const TensorView& normed, const TensorView& delta) {
    const TensorView gate_up = FirstRows(c_.act.up, input.batch.num_tokens);  // sum [T, 2 M]
    const TensorView hidden = FirstRows(c_.act.mlp, input.batch.num_tokens);  // act [T, M]
    if (w.up.n > 0) {
      Linear(*c_.device, normed, w.up, w.up_bias, gate_up);
      SiluAndMul(*c_.device, gate_up, hidden);
    }
    RowParallel(hidden, w.down, w.down_bias, delta);
  }
};

}  // namespace

std::unique_ptr<DecoderModel> MakeLlamaModel(const ModelContext* context) {
  return std::make_unique<LlamaModel>(context);
}

}  // namespace somnus
