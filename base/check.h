#pragma once
// SOMNUS_CHECK is for broken invariants only: it prints where the invariant broke and ends the process. Bad
// input is an absl::Status instead.

#include <cstdio>
#include <cstdlib>

#define SOMNUS_CHECK(condition)                                                              \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::fprintf(stderr, "%s:%d: broken invariant: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)
