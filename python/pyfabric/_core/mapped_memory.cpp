#include "mapped_memory.hpp"

#include "fabric.hpp"

namespace pyfabric {

MappedSource::MappedSource(std::shared_ptr<MappedTable> table, uint64_t address, const Backing& backing)
    : address(address), offset(backing.offset), file(read_only(backing.fd)), table_(std::move(table)) {
  const std::lock_guard lock(table_->mutex);
  id = table_->next_source++;
  descriptor = this;
}

MappedSource::~MappedSource() {
  const std::lock_guard lock(table_->mutex);
  table_->sources_gone.push_back(id);
}

MappedTarget::MappedTarget(std::shared_ptr<MappedTable> table, MappedTable::Area area) : table_(std::move(table)) {
  const std::lock_guard lock(table_->mutex);
  do key = random_bits();
  while (!table_->targets.emplace(key, area).second);
}

MappedTarget::~MappedTarget() {
  const std::lock_guard lock(table_->mutex);
  table_->targets.erase(key);
}

}  // namespace pyfabric
