(block_mapping_pair key: (flow_node) @name value: (block_node)) @definition.key
