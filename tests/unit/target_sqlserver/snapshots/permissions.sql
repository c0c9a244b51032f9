-- For user loader of this database: what a delivery needs, and nothing else.
-- Create staging tables, own them, mark them.
GRANT CREATE TABLE TO [loader];
GRANT ALTER, SELECT, INSERT ON SCHEMA::[dpone_stage] TO [loader];
-- The identity, the gate, the receipts. Receipts are never changed and never deleted.
GRANT SELECT ON [dpone].[installation] TO [loader];
GRANT SELECT, INSERT, UPDATE ON [dpone].[target_gate] TO [loader];
GRANT SELECT, INSERT ON [dpone].[delivery_receipt] TO [loader];
-- See what could stand in the way of a publication: policies, triggers, foreign keys.
GRANT VIEW DEFINITION TO [loader];
GRANT SELECT, INSERT, DELETE ON [shop].[orders] TO [loader];
