#include "checkpoint/head_order.h"

namespace somnus {

int64_t StoredRow(const HeadOrder& order, int64_t row) {
  if (order.head_dim == 0 || row >= order.num_rows) return row;
  const int64_t half = order.head_dim / 2, pairs = order.rotary_dim / 2;
  const int64_t in_head = row % order.head_dim, in_half = in_head % half;
  const bool second = in_head >= half;
  const int64_t head = row - in_head;
  if (in_half >= pairs) return head + order.rotary_dim + (second ? half - pairs : 0) + in_half - pairs;
  return head + (order.interleaved ? 2 * in_half + second : in_half + (second ? pairs : 0));
}

}  // namespace somnus
