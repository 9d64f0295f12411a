-- Nothing reads it: what an admin has approved for good is a current fact (`ApprovalEnded`).
DROP TABLE approval;
