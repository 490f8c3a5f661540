#include "coordinator/block_manager/lowest_id_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace somnus {
namespace {

TEST(LowestIdSetTest, AgreesWithAnOrderedSet) {
  for (const int32_t capacity : {1, 63, 64, 65, 4096, 4097, 300000}) {
    LowestIdSet set(capacity);
    std::set<int32_t> model;
    std::mt19937 random(capacity);
    for (int step = 0; step < 5000; ++step) {
      const int32_t id = static_cast<int32_t>(random() % capacity);
      ASSERT_EQ(set.contains(id), model.contains(id));
      if (model.contains(id)) {
        set.Erase(id);
        model.erase(id);
      } else {
        set.Insert(id);
        model.insert(id);
      }
      ASSERT_EQ(set.size(), static_cast<int32_t>(model.size()));
      if (model.empty()) continue;
      ASSERT_EQ(set.Lowest(), *model.begin());
      if (random() % 3 != 0) continue;
      set.Erase(set.Lowest());
      model.erase(model.begin());
    }
  }
}

}  // namespace
}  // namespace somnus
