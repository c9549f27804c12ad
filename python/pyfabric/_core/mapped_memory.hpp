#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rail.hpp"
#include "shared_file.hpp"

namespace pyfabric {

// The registrations of a MappedRail. They come and go on any thread and may outlive the rail.
struct MappedTable {
  struct Area {
    uint64_t address, nbytes;
  };
  std::mutex mutex;
  std::unordered_map<uint64_t, Area> targets;  // by key
  std::vector<uint64_t> sources_gone;
  uint64_t next_source = 1;
};

// Our memory, as peers may map it: for reading only.
class MappedSource : public Registration {
 public:
  MappedSource(std::shared_ptr<MappedTable> table, uint64_t address, const Backing& backing);
  ~MappedSource() override;
  uint64_t id = 0;
  const uint64_t address, offset;
  const File file;

 private:
  std::shared_ptr<MappedTable> table_;
};

// Our memory, as a peer may have us write to it.
class MappedTarget : public Registration {
 public:
  MappedTarget(std::shared_ptr<MappedTable> table, MappedTable::Area area);
  ~MappedTarget() override;

 private:
  std::shared_ptr<MappedTable> table_;
};

}  // namespace pyfabric
