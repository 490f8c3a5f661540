#pragma once
// What the readers of Hugging Face's and of GGUF files share about YaRN (arXiv 2309.00071).

#include "checkpoint/model_config.h"

namespace somnus {

// How much a context that is `factor` times the original one scales attention (section 3.4), with the weight
// `mscale` of DeepSeek's files; 1 elsewhere.
double YarnAttentionScale(double factor, double mscale);

// Raises max_position_embeddings of a model of rope type kYarn to what the original context times the factor
// gives: files often keep the number that the model had before YaRN was added to them.
void ExtendByYarn(ModelConfig* config);

}  // namespace somnus
