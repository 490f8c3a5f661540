#pragma once
// The order of the rows of query and key projections. A rotary embedding turns pairs of a head's dimensions,
// and files differ in where the two of a pair lie. Models compute in one order, the canonical order: row i of
// a head rotates with row i + head_dim / 2. Since queries and keys change places alike, their products stay
// as they were, and so one kernel serves every kind of rotation.

#include <cstdint>

namespace somnus {

// How a tensor's stored rows lie. Plain data.
struct HeadOrder {
  int32_t head_dim = 0;  // even; 0: the stored order is canonical
  // The first stored rows of each head rotate, an even number; in canonical order half of these begin the
  // head's first half, and half begin the second half. The rest of the rows fill both halves up.
  int32_t rotary_dim = 0;
  // Stored row 2i rotates with row 2i + 1; else row i with row i + rotary_dim / 2.
  bool interleaved = false;
  // The tensor's first rows, whole heads, that lie so: queries and keys. Rows behind, which are values, keep
  // their places.
  int64_t num_rows = 0;
};

// The stored row that holds row `row` in canonical order.
int64_t StoredRow(const HeadOrder& order, int64_t row);

}  // namespace somnus
