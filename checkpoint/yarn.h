#pragma once
// The parts of YaRN (arXiv 2309.00071) that the readers of Hugging Face's and of GGUF files share.

#include "checkpoint/model_config.h"

namespace somnus {

// The scale of attention for a context `factor` times as long as the original context (section 3.4).
// `mscale`: a weight in DeepSeek's files; 1 elsewhere.
double YarnAttentionScale(double factor, double mscale);

// Raises max_position_embeddings of a model of rope type kYarn to the original context times the factor:
// files often keep the number from before YaRN was added.
void ExtendByYarn(ModelConfig* config);

}  // namespace somnus
